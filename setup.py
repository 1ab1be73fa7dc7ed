"""Packaging of Musterbook: four literal top-level packages, plain setuptools."""

import pathlib

import setuptools

HERE = pathlib.Path(__file__).parent

REQUIRES = [
    "alembic>=1.16",
    "cotyledon>=2.2",
    "fasteners>=0.19",
    "kombu>=5.5",
    "oslo.config>=10.0",
    "oslo.context>=6.0",
    "oslo.db>=18.0",
    "oslo.log>=8.0",
    "oslo.messaging>=18.3",
    "oslo.serialization>=5.8",
    "oslo.service[threading]>=4.4",
    "oslo.utils>=9.1",
    "oslo.versionedobjects>=3.12",
    "platformdirs>=4.3",
    "psutil>=6.0",
    "rich>=13.9",
    "SQLAlchemy>=2.1",
    "stevedore>=5.4",
    "tooz>=9.0",
]

# The backends of the group and the database are the operator's choice; each
# extra pulls in the client that tooz or SQLAlchemy loads for it.
EXTRAS = {
    "redis": ["tooz[redis]>=9.0", "redis>=5.0"],
    "zookeeper": ["tooz[zookeeper]>=9.0", "kazoo>=2.10"],
    "memcached": ["tooz[memcached]>=9.0"],
    "etcd": ["tooz[etcd3gw]>=9.0", "etcd3gw>=2.4"],
    "mysql": ["PyMySQL>=1.1"],
    # Compiled against the machine's own libvirt.
    "libvirt": ["libvirt-python>=9.0"],
    "postgresql": ["psycopg2-binary>=2.9.9"],
}

setuptools.setup(
    name="musterbook",
    version="0.1.0",
    description="The book of a compute fleet: what every host has, what is taken, "
    "and whether it is there right now",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    # mypy resolves an editable install only when the mapping is spelled out.
    package_dir={"": "."},
    packages=setuptools.find_packages(
        include=[
            "compute_agent",
            "compute_agent.*",
            "conductor",
            "conductor.*",
            "musterbook",
            "musterbook.*",
            "objects",
            "objects.*",
        ]
    ),
    package_data={
        "compute_agent": ["py.typed"],
        "conductor": ["py.typed", "db/migrations/script.py.mako"],
        "musterbook": ["py.typed"],
        "objects": ["py.typed"],
    },
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": [
            "musterbook-compute = musterbook.entry:compute",
            "musterbook-conductor = musterbook.entry:conductor",
            "musterbook-hollow = musterbook.entry:hollow",
            "musterbook-manage = musterbook.entry:manage",
            "musterbook-standalone = musterbook.entry:standalone",
        ],
        "musterbook.inventory": [
            "fake = compute_agent.inventory.fake:FakeInventory",
            "host = compute_agent.inventory.host:HostInventory",
            "libvirt = compute_agent.inventory.libvirt:LibvirtInventory",
        ],
        "oslo.config.opts": [
            "musterbook = musterbook.conf:list_opts",
            # What the samples in etc/musterbook are made of.
            "musterbook.compute = musterbook.conf:list_compute_opts",
            "musterbook.conductor = musterbook.conf:list_conductor_opts",
            "musterbook.database = conductor.db.engine:list_opts",
            "musterbook.log = musterbook.logs:list_opts",
            "musterbook.process = musterbook.daemon:list_opts",
            "musterbook.rpc = musterbook.rpc:list_opts",
        ],
        "oslo.messaging.drivers": [
            "inproc = musterbook.inproc:InProcessDriver",
        ],
    },
)
