# The programs of the build, and fabricd of the guest. /guest/build is the path of the build folder.

build=$(cat /guest/build)
fabricd=$build/fabricd/fabricd
fabricctl=$build/fabricd/ctl/fabricctl
multiproc=$build/tests/multiproc/test_multiproc
crash=$build/tests/crash/test_crash

# start OPTION...: fabricd in the background, until it serves. stop: ends it, and says how it ended.
start() {
    # The last daemon's words are not this one's: the background job empties its log only once it runs, and a
    # daemon that is ended before it listens to signals dies of them.
    rm -f /tmp/fabricd.log
    $fabricd --config=/dev/null --pool-huge-pages=off "$@" >/tmp/fabricd.log 2>&1 &
    daemon=$!
    # Not by asking it: to start a program with its libraries takes a second here.
    wait_for grep -q "ready:" /tmp/fabricd.log || { cat /tmp/fabricd.log; return 1; }
}

stop() {
    kill -TERM "$daemon" && wait "$daemon"
    code=$?
    [ $code -eq 0 ] || cat /tmp/fabricd.log
    return $code
}

# suite PROGRAM TEST-CASES OPTION...: cases of a test program on the pool of FABRIC_TEST_POOL. That
# none matched the names is a failure.
suite() {
    program=$1 names=$2
    shift 2
    output=$("$program" --no-colors=true --test-case="$names" "$@" 2>&1)
    code=$?
    echo "$output"
    [ $code -eq 0 ] && ! echo "$output" | grep -q "test cases: *0 "
}
