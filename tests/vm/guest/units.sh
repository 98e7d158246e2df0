# The shipped units other than that of fabricd, each under systemd as a system starts it.
. /guest/lib_pool.sh
# As a system has it from its start, or udev loads it.
modprobe fuse
units="fabricd fabric-metrics-bridge fabric-dashboard fabric-data fabric-mount@"
programs="$fabricctl $build/fabricd/bridge/fabric-metrics-bridge $build/fabricd/data/program/fabric-data
    $build/fabricd/data/mount/fabric-mount $build/fabricd/data/mount/fabric-mount-keeper"
case_script=/guest/units_cases.sh
. /guest/service.sh
