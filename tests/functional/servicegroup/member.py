"""A member of a group in a process of its own: joins, tells whom it sees, beats.

Arguments: URL, group, name, count. It prints a line of JSON with the members once it
sees as many, and beats until its input ends; then it leaves.
"""

import json
import select
import sys

from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url


def main(url: str, group: str, name: str, count: str) -> None:
    driver = tooz_driver.ToozDriver(group_url.parse(url), name)
    driver.join(group)
    while len(seen := driver.get_all(group)) < int(count):
        driver.beat()
    print(json.dumps(sorted(seen)), flush=True)
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        driver.beat()
    driver.leave(group)
    driver.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
