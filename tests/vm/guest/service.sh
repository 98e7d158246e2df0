# systemd as the first process, and the shipped units under it: `units`, that of fabricd unless the
# scenario says more. What is here makes the system that they start in; `case_script`, which it runs, has
# the cases. Nothing of the host's own units is taken but the journal and the targets that a service is
# ordered after.
. /guest/lib_pool.sh
source=$(cat /guest/source)
units=${units:-fabricd}
case_script=${case_script:-/guest/service_cases.sh}

# Units name their programs by this path, which is the same one on a system.
[ -e /lib/systemd ] || ln -s /usr/lib/systemd /lib/systemd
mkdir -p /etc/systemd/system /etc/fabricd /usr/lib/sysusers.d /var/tmp /var/log /srv/state /srv/work
chmod 1777 /tmp /var/tmp
echo 'ID=guest' >/etc/os-release

# The units as they are shipped, and the programs where they say: they can't see a home folder, where the
# project may be.
bin=$(sed -n 's/^ExecStart=\(.*\)\/fabricd$/\1/p' "$build/packaging/fabricd.service")
mkdir -p "$bin"
for unit in $units; do cp "$build/packaging/$unit.service" /etc/systemd/system/; done
for program in "$fabricd" ${programs:-}; do cp "$program" "$bin"; done
cp "$source/packaging/fabricd.sysusers" /usr/lib/sysusers.d/fabricd.conf
systemd-sysusers || echo "systemd-sysusers failed"

cat >/etc/systemd/system/default.target <<'UNIT'
[Unit]
Requires=cases.service
UNIT
cat >/etc/systemd/system/cases.service <<UNIT
[Unit]
Requires=basic.target systemd-journald.service
After=basic.target systemd-journald.service
[Service]
Type=oneshot
TimeoutStartSec=infinity
Environment=PATH=/bin:/usr/bin:/usr/sbin:/sbin
ExecStart=/bin/sh $case_script
StandardInput=null
StandardOutput=file:/dev/ttyS0
StandardError=inherit
UNIT
exec /usr/lib/systemd/systemd --show-status=no --log-target=journal-or-kmsg --log-level=notice --crash-reboot=yes
