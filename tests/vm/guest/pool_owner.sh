# The host that owns a pool which the other one shares. It goes on when the other machine is gone.
own=1
. /guest/lib_pool.sh
. /guest/lib_dax.sh
. /guest/lib_shared.sh

check "the kernel offers the pool as a device" dax_ready
check "the hosts have a network" network_ready
meet connected
check "litmus finds no fault in the profile between the two hosts" proven a
check "the pool's owner starts, and listens" start_shared owner --cluster-listen=10.0.0.1:7070
meet owned

work 0 >/tmp/work.log 2>&1 &
ranks=$!
at_work() { wait_for test -e $ready || { cat /tmp/work.log; return 1; }; }
check "its ranks add up with the guest's, and go on without one that was killed" at_work
meet alone
ended_well() { wait "$ranks" || { cat /tmp/work.log; cat /tmp/fabricd.log; return 1; }; }
check "its ranks hear of the end of the guest's machine, and go on with each other" ended_well
check "what the lost host had is given up" grep -q "is given up" /tmp/fabricd.log
check "its memory is not granted again" suite "$shared_pool" "there is no room*"
check "it is not fenced without a confirmation" refuses "confirmed" $fabricctl hosts fence guest
check "nor is it granted after that" suite "$shared_pool" "there is no room*"
check "a person says that the host writes no more" $fabricctl hosts fence guest --confirmed
check "then its memory is granted" suite "$shared_pool" "there is room*"
check "the owner ends in order" stop
