"""tooz's file driver, which would never find a directory again that was removed.

Apart from clients.py as its siblings are.
"""

import os

from tooz import coordination
from tooz.drivers import file


class QuickFileDriver(file.FileDriver):
    """Makes its directories whenever it makes a group; tooz's does at its start only.

    So that members come back by themselves when somebody cleaned up.
    """

    def create_group(self, group_id: bytes) -> coordination.CoordAsyncResult[None]:
        """Make the group, and what it is in.

        :raises OSError: the directories can't be made
        """
        for path in self._reserved_dirs:
            os.makedirs(path, exist_ok=True)
        return super().create_group(group_id)
