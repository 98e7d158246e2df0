# The same memory taken over by the kernel: a node without processors.
. /guest/lib_pool.sh
. /guest/lib_dax.sh

check "the kernel offers the pool as a device" dax_ready

reconfigured() {
    modprobe kmem && daxctl reconfigure-device --mode=system-ram dax0.0 || return 1
    [ -z "$(cat /sys/devices/system/node/node1/cpulist)" ]
}
check "it becomes a memory node without processors" reconfigured

discovered() {
    says "node 1 has" $fabricctl discover || return 1
    echo "$output" | grep -q "its memory comes from a DAX device" || return 1
    echo "$output" | grep -q "rated 250 ns" || return 1
    echo "$output" | grep -q "takes numa"
}
check "discover takes it by itself, and knows its rated latency" discovered

started_on_it() {
    start --pool-backend=auto --pool-capacity=64MiB || return 1
    grep -q "on NUMA node 1" /tmp/fabricd.log && stop
}
check "fabricd takes it by itself" started_on_it

check "a shard that goes to a device has its pages on that device's node" \
    suite "$build/tests/vm/test_vm_shard_nodes" "*"

export FABRIC_TEST_POOL=numa:1
check "processes share arenas" suite "${multiproc}_client_arenas" "what one*"
check "survivors of a group shrink it and go on" suite "${multiproc}_client_groups" "survivors*"
check "a process that died while the daemon was dead is cleaned up after" suite \
    "${multiproc}_client_restart" "a process that died*"
check "four processes agree on every collective" suite "${multiproc}_collective_processes" \
    "four*in place"
check "survivors learn who was killed" suite "${crash}_collective_killed_rank" "*private buffers"
