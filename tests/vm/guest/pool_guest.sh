# A host that shares the pool which the other one owns. Its machine is ended while its rank works.
own=2
. /guest/lib_pool.sh
. /guest/lib_dax.sh
. /guest/lib_shared.sh

check "the kernel offers the pool as a device" dax_ready
check "the hosts have a network" network_ready
meet connected
check "litmus finds no fault in the profile between the two hosts" proven b
meet owned
check "its guest starts" start_shared guest --pool-owner=10.0.0.1:7070
work 2 >/tmp/work.log 2>&1 &
at_work() { wait_for test -e $ready || { cat /tmp/work.log /tmp/fabricd.log; return 1; }; }
check "its ranks add up with the owner's, and one goes on without the other" at_work
meet alone
echo "the machine should have ended here"
