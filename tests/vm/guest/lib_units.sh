# What the cases under systemd share.

# By the clock, since to ask systemd takes its time here.
wait_for() {
    until=$(($(cut -d. -f1 /proc/uptime) + 40))
    until "$@" >/dev/null 2>&1; do
        [ "$(cut -d. -f1 /proc/uptime)" -lt $until ] || { echo "waited in vain for: $*"; return 1; }
        usleep 100000
    done
}
# property UNIT NAME; is UNIT NAME VALUE.
property() { systemctl show -p "$2" --value "$1"; }
is() {
    shown=$(property "$1" "$2")
    [ "$shown" = "$3" ] || { echo "$2 of $1 is $shown, not $3"; return 1; }
}
