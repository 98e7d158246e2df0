# The soft-reserved pool as a device.

device=/dev/dax0.0

dax_ready() {
    # What comes later must not be taken as memory by itself, or it can't be given back.
    echo offline >/sys/devices/system/memory/auto_online_blocks
    modprobe device_dax
    modprobe dax_hmem
    wait_for test -c $device
}

run_dax() { $fabricd --config=/dev/null --pool-backend=dax --pool-dax-device=$device "$@"; }
start_dax() { start --pool-backend=dax --pool-dax-device=$device "$@"; }
uuid_of() { $fabricctl discover --json | sed -n 's/.*"uuid":"\([0-9a-f-]*\)".*/\1/p'; }
rules() { FABRIC_TEST_POOL=dax:$device suite "$build/tests/vm/test_vm_devdax_rules" "$@"; }
