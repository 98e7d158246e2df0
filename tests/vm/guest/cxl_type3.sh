# CXL memory devices behind root ports: a region over one of them, a namespace on it, devdax at last.
# What is stored goes through QEMU's emulation word by word, so little is stored here.
. /guest/lib_pool.sh
. /guest/lib_dax.sh

# The machine has two nodes with processors, too.
spread() {
    suite "$build/tests/unit/machine/test_unit_machine" "*in turn" || return 1
    ! echo "$output" | grep -q "one node:" || return 1
    start --pool-backend=emu --pool-capacity=64MiB || return 1
    grep -q "on 2 NUMA nodes in turn" /tmp/fabricd.log && stop
}
check "an emulated pool lies on both nodes in turn" spread

loaded() {
    for module in cxl_acpi cxl_pci cxl_mem cxl_pmem nd_pmem device_dax dax_pmem; do
        modprobe $module || return 1
    done
    wait_for test -e /sys/bus/cxl/devices/mem0
}
check "the kernel finds the CXL memory devices" loaded
check "discover lists them" says '"memories":[{' $fabricctl discover --json

made() {
    cxl create-region -t pmem -d decoder0.0 -w 1 -m mem0 &&
        ndctl create-namespace -m devdax -r region0 -f && wait_for test -c $device
}
check "a region and a DAX device are made of one" made

listed() {
    says '"region":"region0"' cxl list -M -R || return 1
    says "region0" $fabricctl discover || return 1
    echo "$output" | grep -q "region, pmem" && echo "$output" | grep -q "$device.*blank"
}
check "discover shows the region and the blank device" listed
check "what devdax refuses and allows is as expected" rules "*"

export FABRIC_TEST_POOL=dax:$device
check "processes share arenas" suite "${multiproc}_client_arenas" "what one*"
check "versions of a tensor are published" suite "${multiproc}_client_tensors" "the death*"
check "the daemon may die under its sessions" suite "${multiproc}_client_restart" "regions*"
unset FABRIC_TEST_POOL
check "the catalogue is still there" says '"holds":"catalogue"' $fabricctl discover --json
