# The shipped units other than that of fabricd, each under systemd as a system starts it.
. /guest/lib_pool.sh
# As a system has it from its start, or udev loads it.
modprobe fuse
units="fabricd fabric-metrics-bridge fabric-dashboard fabric-data fabric-mount@"
programs="$fabricctl $build/fabricd/bridge/fabric-metrics-bridge $build/fabricd/data/program/fabric-data
    $build/fabricd/data/mount/fabric-mount $build/fabricd/data/mount/fabric-mount-keeper"
# A user, and what user@.service would start for it: without PAM and logind, which are not here.
echo 'trainer:x:1000:1000::/srv/trainer:/bin/sh' >>/etc/passwd
echo 'trainer:x:1000:' >>/etc/group
mkdir -p /srv/trainer /etc/systemd/user /etc/systemd/system
chown 1000:1000 /srv/trainer
cp "$build/packaging/fabric-jobs.service" /etc/systemd/user/
cat >/etc/systemd/system/user-manager.service <<'UNIT'
[Service]
Type=notify
User=trainer
Environment=HOME=/srv/trainer XDG_RUNTIME_DIR=/run/trainer
RuntimeDirectory=trainer
RuntimeDirectoryMode=0700
Delegate=yes
KillMode=mixed
ExecStart=/usr/lib/systemd/systemd --user
UNIT
case_script=/guest/units_cases.sh
. /guest/service.sh
