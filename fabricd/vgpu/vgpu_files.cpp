#include "fabricd/vgpu/vgpu_files.hpp"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "libfabricshm/base/log.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Fd;
using fabricshm::LedgerFile;
using fabricshm::LimitsPage;
using fabricshm::Mapping;
using fabricshm::PoisonWatch;
using fabricshm::Result;
using fabricshm::UsageLedger;

namespace {

Result<Fd> open_file(const std::string& path, int flags) {
    Fd file(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return fabricshm::error_of_disk(errno, "open a vGPU's file");
    return file;
}

bool has_size(const Fd& file, Bytes bytes) {
    struct stat status {};
    return ::fstat(file.get(), &status) == 0 && static_cast<Bytes>(status.st_size) == bytes;
}

// Blocks that a file system counts for a file besides its bytes.
constexpr Bytes kBlocksBeside = 256 * fabricshm::kKiB;

bool trim_file(const Fd& file, Bytes bytes) {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return false;
    const bool is_longer = static_cast<Bytes>(status.st_size) > bytes;
    // fallocate() can set blocks aside without a change of the size.
    const bool has_more = static_cast<Bytes>(status.st_blocks) * 512 > bytes + kBlocksBeside;
    // One that was cut short stays so: its lost pages are known to be lost.
    const bool is_whole = static_cast<Bytes>(status.st_size) >= bytes;
    if (!is_longer && !(has_more && is_whole)) return false;
    return ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0;
}

struct Opened {
    Fd file;
    Mapping mapping;
};

// A new file of zeros in place of whatever was there, under its name only when it is whole.
Result<Opened> make_file(const std::string& path, Bytes bytes) {
    const std::string draft = path + ".new";
    ::unlink(draft.c_str());
    Opened made;
    FABRIC_TRY(made.file, open_file(draft, O_RDWR | O_CREAT | O_EXCL));
    const int failed = ::posix_fallocate(made.file.get(), 0, static_cast<off_t>(bytes));
    if (failed != 0) {
        ::unlink(draft.c_str());
        return fabricshm::error_of_disk(failed, "make a vGPU's file");
    }
    FABRIC_TRY(made.mapping, Mapping::map(made.file, 0, bytes, {}));
    return made;
}

Result<void> put_in_place(const std::string& path) {
    if (::rename((path + ".new").c_str(), path.c_str()) == 0) return {};
    return fabricshm::error_of_disk(errno, "make a vGPU's file");
}

// The file as it is; kCorrupt when it can't be one of ours.
Result<Opened> open_old(const std::string& path, Bytes bytes) {
    Opened old;
    FABRIC_TRY(old.file, open_file(path, O_RDWR));
    (void)trim_file(old.file, bytes);
    if (!has_size(old.file, bytes)) {
        return fabricshm::Error{fabricshm::Errc::kCorrupt, 0, "open a vGPU's file"};
    }
    FABRIC_TRY(old.mapping, Mapping::map(old.file, 0, bytes, {}));
    return old;
}

LimitsPage& page_in(const Mapping& mapping) {
    return *reinterpret_cast<LimitsPage*>(mapping.data());
}

LedgerFile& ledger_in(const Mapping& mapping) {
    return *reinterpret_cast<LedgerFile*>(mapping.data());
}

std::unique_ptr<PoisonWatch> watch_over(const Mapping& mapping) {
    // Not put back: the lost pages stay empty ones of ours, and nothing waits for them.
    return std::make_unique<PoisonWatch>(mapping.data(), mapping.size(),
                                         PoisonWatch::Source{nullptr, 0, 4096, true});
}

}  // namespace

Result<VgpuFiles> VgpuFiles::open(const std::string& path, std::uint64_t boot) {
    const std::string limits_path = path + ".limits";
    const std::string ledger_path = path + ".usage";
    VgpuFiles files;
    files.path_ = path;
    auto ledger = open_old(ledger_path, fabricshm::kLedgerBytes);
    auto limits = open_old(limits_path, fabricshm::kLimitsPageBytes);
    bool goes_on = ledger.ok() && limits.ok() && is_limits_page(page_in(limits->mapping));
    if (goes_on) {
        files.watch_ = watch_over(ledger->mapping);
        goes_on = files
                      .read([&] {
                          const LedgerFile& file = ledger_in(ledger->mapping);
                          return UsageLedger::is_ledger(file) && file.boot == boot;
                      })
                      .value_or(false);
    }
    if (!goes_on) {
        // The page first: a ledger in place says that both are.
        FABRIC_TRY(Opened page, make_file(limits_path, fabricshm::kLimitsPageBytes));
        fabricshm::format_limits(page_in(page.mapping));
        FABRIC_TRY_VOID(put_in_place(limits_path));
        FABRIC_TRY(Opened book, make_file(ledger_path, fabricshm::kLedgerBytes));
        UsageLedger::format(ledger_in(book.mapping), boot);
        FABRIC_TRY_VOID(put_in_place(ledger_path));
        files.watch_ = watch_over(book.mapping);
        limits = std::move(page);
        ledger = std::move(book);
    }
    files.ledger_file_ = std::move(ledger->file);
    files.ledger_ = std::move(ledger->mapping);
    files.limits_ = std::move(limits->mapping);
    FABRIC_TRY(files.limits_read_only_, open_file(limits_path, O_RDONLY));
    return files;
}

bool VgpuFiles::retire(const std::string& path) {
    const auto limits = open_old(path + ".limits", fabricshm::kLimitsPageBytes);
    if (!limits.ok() || !is_limits_page(page_in(limits->mapping))) return false;
    auto last = read_limits(page_in(limits->mapping));
    if (!last) return false;
    last->target_bytes = 0;
    write_limits(page_in(limits->mapping), *last);
    return true;
}

bool VgpuFiles::trim() const {
    return trim_file(ledger_file_, fabricshm::kLedgerBytes);
}

bool VgpuFiles::report_to(int inotify) const {
    // By the descriptor: its name may be another file's by now.
    const std::string path = "/proc/self/fd/" + std::to_string(ledger_file_.get());
    return ::inotify_add_watch(inotify, path.c_str(), IN_MODIFY) >= 0;
}

LimitsPage& VgpuFiles::page() const noexcept {
    return page_in(limits_);
}

LedgerFile& VgpuFiles::ledger() const noexcept {
    return ledger_in(ledger_);
}

Result<Fd> VgpuFiles::limits_for_tenant() const {
    return limits_read_only_.duplicate();
}

Result<Fd> VgpuFiles::ledger_for_tenant() const {
    return ledger_file_.duplicate();
}

}  // namespace fabricd
