# The other shipped units, as they are shipped (units.sh has made the system). Run as a service.
. /guest/lib.sh
. /guest/lib_pool.sh
. /guest/lib_units.sh
mount_unit=fabric-mount@srv-mount
files=/srv/files

status_of() { grep -E "^(Uid|CapEff|NoNewPrivs|Seccomp):" "/proc/$(property "$1" MainPID)/status"; }
said_by() { journalctl --sync; journalctl -q -u "$1" -n 20 -o cat; }
# starts UNIT: and is one that serves.
starts() { systemctl start "$1" && is "$1" ActiveState active && is "$1" NRestarts 0 || { said_by "$1"; return 1; }; }
# Another process than $2 is the unit's.
again() {
    wait_for sh -c '[ "$(systemctl show -p ActiveState --value '"$1"')" = active ] &&
        [ "$(systemctl show -p MainPID --value '"$1"')" != '"$2"' ]' || { said_by "$1"; return 1; }
}
# confined UNIT: as fabricd's user, without a capability, and with a filter of system calls.
confined() {
    status=$(status_of "$1")
    echo "$status"
    user=$(sed -n 's/^fabricd:[^:]*:\([0-9]*\):.*/\1/p' /etc/passwd)
    [ "$(echo "$status" | awk '/^Uid:/ {print $2 $3}')" = "$user$user" ] &&
        echo "$status" | grep -q "^CapEff:[^1-9a-f]*$" && echo "$status" | grep -q "^NoNewPrivs:[^0-9]*1" &&
        echo "$status" | grep -q "^Seccomp:[^0-9]*2$"
}
get() { wget -q -O /tmp/got "$@"; }

printf '%s\n' '[pool]' 'capacity = "192MiB"' 'huge_pages = "off"' '[telemetry]' \
    'metrics_socket = "/run/fabricd/metrics.sock"' >/etc/fabricd/fabricd.toml
check "fabricd starts" starts fabricd

check "the bridge of the metrics starts" starts fabric-metrics-bridge
check "it is confined" confined fabric-metrics-bridge
metrics() { get http://127.0.0.1:9464/metrics && grep -q "^fabricd_pool_capacity_bytes 2" /tmp/got; }
check "Prometheus finds the metrics of fabricd at its address" wait_for metrics

check "the dashboard starts" starts fabric-dashboard
check "it is confined" confined fabric-dashboard
picture() {
    get --header "X-Fabric-Token: $(cat /run/fabric-dashboard/token)" http://127.0.0.1:8765/api/v1/picture &&
        grep -q '"answers":true' /tmp/got
}
check "its token opens the picture" wait_for picture
no_token() {
    wget -S -O /tmp/got http://127.0.0.1:8765/api/v1/picture 2>&1 | grep -F " 401 " || return 1
    [ "$(stat -c %a /run/fabric-dashboard/token)" = 600 ] && [ "$(stat -c %a /run/fabric-dashboard)" = 700 ]
}
check "without the token there is none, and others can't read it" no_token
dashboard_killed() {
    token=$(cat /run/fabric-dashboard/token)
    pid=$(property fabric-dashboard MainPID)
    kill -KILL "$pid" && again fabric-dashboard "$pid" && wait_for picture && [ "$(cat /run/fabric-dashboard/token)" = "$token" ]
}
check "killed it is there again, with the token of before" dashboard_killed

mkdir -p $files /srv/mount
for number in 1 2 3 4 5 6 7 8; do dd if=/dev/urandom of=$files/$number bs=64k count=$number 2>/dev/null; done
chmod 755 /srv $files
wrong_data() {
    printf '%s\n' '[cache]' 'memory = "many"' >/etc/fabricd/data.toml
    systemctl start fabric-data && return 1
    usleep 3000000
    is fabric-data ActiveState failed && is fabric-data ExecMainStatus 2 && is fabric-data NRestarts 0 &&
        said_by fabric-data | grep memory
}
check "a mistake in the data file is not tried again" wrong_data
printf '%s\n' '[cache]' 'memory = "48MiB"' '[[silo]]' 'at = "/set"' "from = \"$files\"" >/etc/fabricd/data.toml
chmod 644 /etc/fabricd/data.toml
data_starts() { systemctl reset-failed fabric-data && starts fabric-data; }
check "the data cache starts" data_starts
check "it is confined" confined fabric-data

mounted() { starts $mount_unit && grep " /srv/mount fuse" /proc/mounts; }
check "the mount starts" mounted
same() {
    for number in 1 2 3 4 5 6 7 8; do
        cmp $files/$number /srv/mount/set/$number || { $build/fabricd/data/program/fabric-data status; dmesg | tail -5; said_by fabric-data; return 1; }
    done
}
check "its files have the bytes of the silo" same
data_killed() {
    pid=$(property fabric-data MainPID)
    kill -KILL "$pid" && again fabric-data "$pid" && same
}
check "the data cache is killed and there again, and the mount has the same bytes" data_killed
daemon_restarts() {
    pid=$(property fabricd MainPID)
    systemctl restart fabricd && again fabricd "$pid" && same && wait_for picture && wait_for metrics
}
check "fabricd is started again, and all of them go on" daemon_restarts
keeper_killed() {
    pid=$(property $mount_unit MainPID)
    kill -KILL "$pid" && again $mount_unit "$pid" && wait_for same
}
check "the keeper is killed, and the mount is there again" keeper_killed

# A user's queue, under the manager of that user's services.
work=/srv/trainer
bin=$(sed -n 's/^ExecStart=\(.*\)\/fabricctl .*/\1/p' /etc/systemd/user/fabric-jobs.service)
as_trainer() {
    (cd $work && /usr/bin/setpriv --reuid trainer --regid trainer --clear-groups env HOME=$work XDG_RUNTIME_DIR=/run/trainer "$@")
}
of_user() { as_trainer systemctl --user "$@"; }
jobs() { as_trainer "$bin/fabricctl" jobs "$@"; }
queue_pid() { of_user show -p MainPID --value fabric-jobs; }
queue_is() { [ "$(of_user show -p ActiveState --value fabric-jobs)" = "$1" ] && [ "$(queue_pid)" != "${2:-0}" ]; }
# job NAME SCRIPT: a program of two ranks, that needs no device of its own.
job() {
    printf '%s\n' '#!/bin/sh' "$2" >$work/$1.sh
    chmod 755 $work/$1.sh
    printf '%s\n' '[job]' "name = \"$1\"" "script = \"./$1.sh\"" 'interpreter = ""' '[[group]]' 'kind = "cpu"' 'ranks = 2' >$work/$1.toml
}
# Of a service of the system users can't ask which devices there are: they say so themselves.
printf '%s\n' '[[device]]' 'name = "host"' 'kind = "cpu"' 'gflops = 10.0' 'memory = "64MiB"' 'link_gbytes_per_s = 10.0' >$work/devices.toml
shows_job() { jobs show "$1" | grep -q -E "$2"; }
queue_starts() {
    systemctl start user-manager && is user-manager ActiveState active && of_user enable --now fabric-jobs && queue_is active
}
check "a user's queue of jobs is enabled and starts" queue_starts
job short 'echo rank $RANK of $WORLD_SIZE'
short_ends() {
    jobs submit --devices devices.toml short.toml && wait_for shows_job short 'ended.*ok' && jobs logs short && jobs logs short | grep -q "rank 1 of 2" ||
        { jobs show short; return 1; }
}
check "what a user submits runs, as that user" short_ends
job long 'id -u >uid.$RANK; until [ -e end ]; do usleep 100000; done'
long_runs() { jobs submit --devices devices.toml long.toml && wait_for test -s $work/uid.1 && [ "$(cat $work/uid.0 $work/uid.1 | tr -d '\n')" = 10001000 ]; }
check "a job that lasts runs" long_runs
queue_killed() {
    pid=$(queue_pid)
    kill -KILL "$pid" && wait_for queue_is active "$pid" && shows_job long running || { jobs show long; return 1; }
}
check "the queue is killed and there again, and the job runs" queue_killed
queue_stopped() { of_user stop fabric-jobs && queue_is inactive none && shows_job long running; }
check "the queue is stopped, and the job runs" queue_stopped
long_ends() { of_user start fabric-jobs && touch $work/end && wait_for shows_job long 'ended.*ok' || { jobs show long; return 1; }; }
check "it ends well under another queue" long_ends
nothing_left() { jobs leaks && of_user disable --now fabric-jobs && systemctl stop user-manager && is user-manager Result success; }
check "the user's manager ends, and nothing of the jobs is left" nothing_left

# The unit, then what it must not leave.
ends() { systemctl stop "$1" && is "$1" ActiveState inactive && [ ! -e "$2" ] || { said_by "$1"; return 1; }; }
unmounted() { systemctl stop $mount_unit && is $mount_unit Result success && ! grep " /srv/mount " /proc/mounts; }
check "the mount ends, and nothing is mounted" unmounted
check "the dashboard ends, with its token" ends fabric-dashboard /run/fabric-dashboard
check "the bridge ends" ends fabric-metrics-bridge /run/fabric-metrics-bridge
check "the data cache ends" ends fabric-data /run/fabricd/data.sock
check "fabricd ends" ends fabricd /run/fabricd/attach.sock
finish
