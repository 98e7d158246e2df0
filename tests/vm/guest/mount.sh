# The mount on Debian's kernel, which can't send a request again (FUSE_NOTIFY_RESEND is of 6.9).
. /guest/lib_pool.sh

export FABRIC_TEST_KILLS=15
check "the kernel has fuse" modprobe fuse
check "kills of the mount's server lose no read" \
    suite "$build/tests/multiproc/mount/test_multiproc_mount_kills" "40 kills*"
