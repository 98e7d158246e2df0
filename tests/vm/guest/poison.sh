# Hardware poison, injected by the kernel that has MEMORY_FAILURE.
. /guest/lib_pool.sh
. /guest/lib_dax.sh

check "the kernel offers the pool as a device" dax_ready
export FABRIC_TEST_POOL=dax:$device
check "poison ends one process, and neither the daemon nor the others" \
    suite "$build/tests/vm/test_vm_poison" "*"
