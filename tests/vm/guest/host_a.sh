# The host that formats the shared device and owns it, until the other one takes it.
. /guest/lib_pool.sh
. /guest/lib_dax.sh
two_hosts=$build/tests/vm/test_vm_two_hosts

check "the kernel offers the pool as a device" dax_ready
check "the blank device becomes this host's pool" start_dax
meet owned
meet refused
export FABRIC_TEST_POOL=dax:$device
check "its rank meets the other host's in all collectives" suite "$two_hosts" "host a*"
meet met
meet taken
check "when the pool was taken it grants nothing any more" suite "$two_hosts" "a host that lost*"
check "its daemon ends in order" stop
meet ended
