# The shipped unit under systemd (service.sh has made the system). Run as a service.
. /guest/lib.sh
. /guest/lib_pool.sh
. /guest/lib_units.sh
work=/srv/work
state=/srv/state
config=/etc/fabricd/fabricd.toml
drop_in=/run/systemd/system/fabricd.service.d

shows() { property fabricd "$1"; }
# since: what the journal has of the unit from here on; its own last entry, since the one after the
# cursor that matches is skipped. journal_says TEXT
since() { journalctl --sync; cursor=$(journalctl -q -u fabricd -n 1 --show-cursor | sed -n 's/^-- cursor: //p'); }
journal_says() {
    journalctl --sync
    journalctl -q -u fabricd --after-cursor="$cursor" -o cat >/tmp/journal.log
    grep -q -F -e "$1" /tmp/journal.log && return 0
    echo "the journal lacks: $1"
    cat /tmp/journal.log
    return 1
}
# A daemon of its own: not the one of before.
another_serves() {
    wait_for sh -c '[ "$(systemctl show -p ActiveState --value fabricd)" = active ] &&
        [ "$(systemctl show -p MainPID --value fabricd)" != '"$1"' ]' ||
        { systemctl show -p ActiveState,Result,NRestarts fabricd; journalctl -q -u fabricd -n 20 -o cat; return 1; }
}

config_of() { printf '%s\n' "$@" >$config; }
client() {
    rm -f $work/*
    FABRIC_LOG=info FABRIC_TEST_WORK=$work "$build/tests/vm/test_vm_service_client" --no-colors=true >/tmp/client.log 2>&1 &
    client=$!
    wait_for test -s $work/grants || { cat /tmp/client.log; return 1; }
}
# grows turns|grants: by ten, from now on.
grows() {
    from=$(cat $work/$1)
    wait_for sh -c "[ \$(cat $work/$1) -ge $((from + 10)) ]" ||
        { cat /tmp/client.log; journalctl -q -u fabricd -n 12 -o cat; return 1; }
}
works() { grows turns && grows grants; }
client_ends() {
    touch $work/end
    wait $client
    code=$?
    [ $code -eq 0 ] || cat /tmp/client.log
    return $code
}

config_of '[pool]' 'capacity = "128MiB"' 'huge_pages = "off"'

started() {
    systemctl start fabricd && is fabricd ActiveState active && is fabricd StatusText "Serving /run/fabricd/attach.sock" &&
        is fabricd NRestarts 0
}
check "the unit starts, and systemd hears when it serves" started

confined() {
    status=/proc/$(shows MainPID)/status
    grep -E "^(Uid|CapEff|NoNewPrivs|Seccomp):" $status
    user=$(sed -n 's/^fabricd:[^:]*:\([0-9]*\):.*/\1/p' /etc/passwd)
    [ "$(awk '/^Uid:/ {print $2 $3}' $status)" = "$user$user" ] && grep -q "^CapEff:[^1-9a-f]*$" $status &&
        grep -q "^NoNewPrivs:[^0-9]*1" $status && grep -q "^Seccomp:[^0-9]*2$" $status
}
check "it runs as its own user, without any capability" confined
check "processes of the host attach and work" client

reloaded() {
    pid=$(shows MainPID)
    since
    config_of '[log]' 'level = "debug"' '[pool]' 'capacity = "256MiB"' 'huge_pages = "off"'
    systemctl reload fabricd && is fabricd ActiveState active && is fabricd MainPID "$pid" || return 1
    journal_says "reloaded: log level debug" && journal_says "waits for a restart: pool.capacity" && works
}
check "a reload ends when it is done, and says what waits for a restart" reloaded

killed() {
    pid=$(shows MainPID)
    kill -KILL "$pid"
    another_serves "$pid" && is fabricd NRestarts 1 && works
}
check "a killed daemon is started again, and its sessions go on" killed

restarted() {
    pid=$(shows MainPID)
    systemctl restart fabricd || return 1
    another_serves "$pid" && is fabricd NRestarts 0 && works
}
check "a restart is one: the sessions go on" restarted

# Five seconds instead of thirty: it is the same clock.
stalled() {
    mkdir -p $drop_in
    printf '[Service]\nWatchdogSec=5s\n' >$drop_in/watchdog.conf
    systemctl daemon-reload && systemctl restart fabricd || return 1
    pid=$(shows MainPID)
    # Longer than the watchdog's time: a daemon that is well is left alone.
    usleep 7000000
    is fabricd MainPID "$pid" && is fabricd NRestarts 0 || return 1
    since
    kill -STOP "$pid"
    another_serves "$pid" && journal_says "Watchdog timeout" && is fabricd NRestarts 1 && works
}
check "a daemon that stands still is found by the watchdog, and replaced" stalled
check "the ranks kept what was theirs" client_ends

stopped() {
    systemctl stop fabricd && is fabricd Result success && is fabricd ExecMainStatus 0 && [ ! -e /run/fabricd ]
}
check "it ends in order, and nothing of it stays" stopped

misconfigured() {
    since
    config_of '[server]' 'socket_mode = "many"'
    systemctl start fabricd && return 1
    usleep 3000000
    is fabricd ActiveState failed && is fabricd ExecMainStatus 2 && is fabricd NRestarts 0 && journal_says server.socket_mode
}
check "a mistake in the configuration is not tried again" misconfigured

# From here on the state lies on a disk of its own. One file and its folder are all that fit.
no_room() {
    rm -f $drop_in/watchdog.conf
    mkdir -p $drop_in
    printf '[Service]\nReadWritePaths=%s\n' $state >$drop_in/state.conf
    mount -t tmpfs -o size=4m,nr_inodes=2,mode=0700 state $state && touch $state/filler || return 1
    chown fabricd:fabricd $state
    config_of '[state]' "dir = \"$state\"" '[pool]' 'capacity = "128MiB"' 'huge_pages = "off"'
    systemctl daemon-reload && systemctl reset-failed fabricd && since
    systemctl start fabricd && return 1
    # While the next attempt starts it is 0.
    wait_for sh -c '[ "$(systemctl show -p ExecMainStatus --value fabricd)" = 1 ]' || return 1
    # More often than systemd's own limit of five in ten seconds.
    wait_for sh -c '[ "$(systemctl show -p NRestarts --value fabricd)" -ge 6 ]' || return 1
    journal_says "No space left on device"
}
check "a disk without room for a file is tried again and again" no_room
found_room() {
    mount -o remount,nr_inodes=1000 $state && rm $state/filler && another_serves 0
}
check "and the daemon serves as soon as there is room" found_room
check "processes attach again" client

# What the journal set aside before takes some more grants; the next daemon has none of that.
full() {
    dd if=/dev/zero of=$state/filler bs=4096 2>/dev/null
    grows turns
}
check "on a full disk collectives go on" full

still() { before=$(cat $work/grants); usleep 1000000; [ "$(cat $work/grants)" = "$before" ]; }
full_and_killed() {
    pid=$(shows MainPID)
    since
    kill -KILL "$pid"
    another_serves "$pid" && grows turns && still &&
        journal_says "nothing is granted until it can be written" || return 1
    refuses "No space left on device" $fabricctl health
}
check "killed on a full disk it is there again with what lies there, and grants nothing" full_and_killed

freed() { rm $state/filler && works && $fabricctl health; }
check "grants go on when there is room again" freed
check "the ranks still kept what was theirs" client_ends
check "it ends in order" systemctl stop fabricd
finish
