# The other host that reaches the device.
. /guest/lib_pool.sh
. /guest/lib_dax.sh
two_hosts=$build/tests/vm/test_vm_two_hosts

check "the kernel offers the pool as a device" dax_ready
meet owned
seen() { says '"holds":"catalogue"' $fabricctl discover --json && uuid=$(uuid_of) && [ -n "$uuid" ]; }
check "it sees the other host's catalogue" seen
check "it may not have the pool" refuses "belongs to another host" run_dax
check "it may not even format it" refuses "belongs to another host" run_dax --format
check "what was refused is left as it was" says "$uuid" $fabricctl discover
meet refused
export FABRIC_TEST_POOL=dax:$device
check "its rank meets the other host's in all collectives" suite "$two_hosts" "host b*"
meet met
check "it takes the pool over when told to" start_dax --take-over
meet taken
meet ended
check "and keeps it, whatever the other host's daemon did then" stop
kept() { start_dax --pool-dax-uuid="$uuid" && stop; }
check "the catalogue is whole after that" kept
