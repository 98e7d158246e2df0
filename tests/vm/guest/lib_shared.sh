# One host of two that share a pool, each with its own fabricd. $own is the last number of this host's
# address; lib_pool.sh and lib_dax.sh come before this file.

tls=$(word tls)
proof=/tmp/proof
ready=/tmp/ready
shared_pool=$build/tests/vm/test_vm_shared_pool

network_ready() {
    modprobe virtio_pci && modprobe virtio_net && wait_for test -e /sys/class/net/eth0 || return 1
    ip link set eth0 up && ip addr add "10.0.0.$own/24" dev eth0
}

# proven ROLE: plays one side of fabric-litmus over the device, at a place that is not among those that have to be
# blank.
proven() {
    "$build/emu/litmus/fabric-litmus" --profile clwb --memory $device --offset 67108864 --rounds 100 --role "$1" \
        --timeout 120 --record $proof
}

# start_shared NAME OPTION...: this host's fabricd.
start_shared() {
    host=$1
    shift
    start_dax --pool-hosts=2 --pool-visibility=clwb --pool-visibility-proof=$proof --cluster-host-name="$host" \
        --cluster-tls-ca="$tls/ca.pem" --cluster-tls-cert="$tls/$host.pem" --cluster-tls-key="$tls/$host.key" \
        --state-adopt-grace=5s "$@"
}

work() { FABRIC_TEST_FIRST=$1 FABRIC_TEST_READY=$ready suite "$shared_pool" "the ranks of this host*"; }
