# Soft-reserved memory, as firmware describes a CXL pool: the kernel makes a device-DAX of it.
. /guest/lib_pool.sh
. /guest/lib_dax.sh

check "the kernel offers the pool as a device" dax_ready

found_blank() {
    says '"holds":"blank"' $fabricctl discover --json && echo "$output" | grep -q '"align_bytes":2097152'
}
check "discover finds it blank, with its alignment" found_blank
check "what devdax refuses and allows is as expected" rules "*"

blank_is_formatted() {
    start_dax && stop || return 1
    uuid=$(uuid_of)
    says "$uuid" $fabricctl discover && echo "$output" | grep -q "taken only when asked for"
}
check "a blank device is formatted by the first daemon, and discover shows it" blank_is_formatted
check "another UUID is refused" \
    refuses "UUID" run_dax --pool-dax-uuid=ffffffff-4455-6677-8899-aabbccddeeff

restart_finds_it() {
    start_dax --pool-dax-uuid="$uuid" || return 1
    refuses "another process has it" run_dax --server-runtime-dir=/tmp/second || return 1
    stop
}
check "a restart finds its catalogue, and keeps a second daemon out" restart_finds_it

export FABRIC_TEST_POOL=dax:$device
check "processes share arenas" suite "${multiproc}_client_arenas" "an arena lives*"
check "survivors of a group shrink it and go on" suite "${multiproc}_client_groups" "survivors*"
check "collectives run on while the daemon is dead" suite "${multiproc}_client_restart" \
    "collectives run on*"
check "a killed process is cleaned up after" suite "${multiproc}_pool_processes" "a killed*"
check "four processes agree on every collective" suite "${multiproc}_collective_processes" \
    "four*in the arena"
check "survivors learn who was killed" suite "${crash}_collective_killed_rank" "*in the arena"
check "a killed daemon's successor keeps its word" suite "${crash}_pool_daemon_killed" \
    "killed again*"
unset FABRIC_TEST_POOL

# Half of the device now: the catalogue on it is of another size.
resized_is_refused() {
    daxctl disable-device dax0.0 && daxctl reconfigure-device -s 256M dax0.0 || return 1
    # The node is there all the time; it can be opened once the driver has the device again, which
    # daxctl sees to or not, by its version.
    daxctl enable-device dax0.0
    wait_for sh -c ": <$device" || return 1
    refuses "of another device size" run_dax && [ "$(uuid_of)" = "$uuid" ]
}
check "a device of another size is refused and left as it is" resized_is_refused
cut_in_two() { daxctl create-device -r 0 && says dax0.1 daxctl list && wait_for test -c /dev/dax0.1; }
check "the rest becomes a second device" cut_in_two
formatted_on_request() {
    start_dax --format && stop && [ "$(uuid_of)" != "$uuid" ]
}
check "it is formatted when asked for" formatted_on_request
foreign_is_refused() {
    rules "leave other data*" --no-skip && refuses "holds other data" run_dax
}
check "a device with other data is refused" foreign_is_refused
