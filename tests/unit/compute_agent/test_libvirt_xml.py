"""What libvirt says in XML: shapes as its manual describes them, and nonsense."""

from collections.abc import Callable

import pytest

from compute_agent.inventory import libvirt_xml

QEMU = """<capabilities>
  <host>
    <uuid>7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001</uuid>
    <cpu>
      <arch>x86_64</arch><model>Skylake-Server</model><vendor>Intel</vendor>
      <topology sockets='1' dies='1' cores='4' threads='2'/>
      <feature name='vmx'/><feature name='aes'/>
    </cpu>
    <topology><cells num='2'>
      <cell id='0'><memory unit='KiB'>1024</memory>
        <cpus num='2'><cpu id='2'/><cpu id='0'/></cpus></cell>
      <cell id='1'><cpus num='0'/></cell>
    </cells></topology>
  </host>
  <guest><os_type>hvm</os_type>
    <arch name='x86_64'><domain type='qemu'/><domain type='kvm'/></arch></guest>
  <guest><os_type>hvm</os_type>
    <arch name='i686'><domain type='qemu'/></arch></guest>
</capabilities>"""
BARE = "<capabilities><host><cpu><arch>s390x</arch></cpu></host></capabilities>"


def test_capabilities_of_qemu() -> None:
    found = libvirt_xml.capabilities(QEMU)
    assert found.uuid == "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"
    assert (found.arch, found.model, found.vendor) == (
        "x86_64", "Skylake-Server", "Intel",
    )  # fmt: skip
    assert found.features == ("aes", "vmx")
    assert found.cells == (
        libvirt_xml.Cell(id=0, cpus=(0, 2), memory=1024**2),
        libvirt_xml.Cell(id=1, cpus=(), memory=0),  # memory alone, or none of it
    )
    assert found.specs == (
        ("i686", "qemu", "hvm"), ("x86_64", "kvm", "hvm"), ("x86_64", "qemu", "hvm"),
    )  # fmt: skip


def test_the_least_that_capabilities_need() -> None:
    found = libvirt_xml.capabilities(BARE)
    assert found == libvirt_xml.Capabilities(
        uuid=None, arch="s390x", model="unknown", vendor="unknown", features=(),
        cells=(), specs=(),
    )  # fmt: skip


def test_a_domain_s_disks() -> None:
    found = libvirt_xml.domain(
        """<domain><memory unit='GiB'>2</memory><vcpu current='1'>4</vcpu><devices>
        <disk type='file' device='disk'><source file='/a'/></disk>
        <disk type='block' device='disk'><source dev='/dev/vg/b'/></disk>
        <disk type='network' device='disk'><source protocol='rbd' name='p/c'/></disk>
        <disk type='volume' device='disk'><source pool='p' volume='v'/></disk>
        <disk type='file' device='cdrom'><source file='/iso'/></disk>
        <disk type='file' device='cdrom'/><disk type='file' device='disk'/>
        </devices></domain>"""
    )
    assert (found.vcpus, found.memory) == (4, 2 * 1024**3)
    assert found.disks == ("/a", "/dev/vg/b")
    assert found.pooled == (("p", "v"),)


def test_a_pool() -> None:
    found = libvirt_xml.pool("<pool type='dir'><target><path>/x</path></target></pool>")
    assert found == libvirt_xml.Pool(kind="dir", path="/x")
    assert libvirt_xml.pool("<pool type='rbd'/>").path is None


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (libvirt_xml.capabilities, "", "can't be read"),
        (libvirt_xml.capabilities, "<capabilities/>", "has no host/cpu"),
        (libvirt_xml.capabilities, BARE.replace("arch", "x"), "has no arch"),
        (libvirt_xml.domain, "<domain/>", "has no vcpu"),
        (libvirt_xml.domain, "<domain><vcpu>x</vcpu></domain>", "invalid literal"),
        (libvirt_xml.domain, "<domain><vcpu>1</vcpu></domain>", "has no memory"),
        (
            libvirt_xml.domain,
            "<domain><vcpu>1</vcpu><memory unit='parsec'>1</memory></domain>",
            "memory is in parsec",
        ),
    ],
)
def test_nonsense(read: Callable[[str], object], text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(text)
