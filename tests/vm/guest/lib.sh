# What the scenarios share: cases, and the end of the machine.

failures=0
cases=0
log=/tmp/case.log

# check NAME COMMAND...: one case; it passes when the command ends with 0. Its output is shown only
# when it does not: the console is slow.
check() {
    name=$1
    shift
    cases=$((cases + 1))
    if "$@" >$log 2>&1; then
        echo "vm: ok $name"
    else
        code=$?
        failures=$((failures + 1))
        cat $log
        echo "vm: FAIL $name (exit code $code)"
    fi
}

# says TEXT COMMAND...: the command ends with 0, and its output has the text.
says() {
    wanted=$1
    shift
    output=$("$@" 2>&1) || { code=$?; echo "$output"; return $code; }
    echo "$output"
    echo "$output" | grep -q -F -e "$wanted"
}

# refuses TEXT COMMAND...: the command fails, and its output has the text.
refuses() {
    wanted=$1
    shift
    if output=$("$@" 2>&1); then
        echo "$output"
        echo "it ended with 0"
        return 1
    fi
    echo "$output"
    echo "$output" | grep -q -F -e "$wanted"
}

# wait_for COMMAND...: until it ends with 0; for about 30 s.
wait_for() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "waited in vain for: $*"; return 1; }
        usleep 50000
    done
}

# meet NAME: waits until all machines of the scenario are here. The host answers on the console.
meet() {
    echo "vm: at $1"
    read -r -t 600 line && [ "$line" = "go $1" ] || echo "nobody else came to $1"
}

# Ends the machine: with -no-reboot QEMU exits. The counts are the result.
finish() {
    echo "vm: end $cases $failures"
    # The last line has to leave the serial port before the machine is gone.
    usleep 20000
    reboot -f
}
