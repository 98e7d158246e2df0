// A rank's thread: save the shard, write it to its places in the files, then leave a record of it
// in the directory. Records appear whole (by rename), and the thread that finds those of all ranks
// adds the headers and gives the snapshot its name: the last one to leave its record does find
// them. A rank that dies leaves none, so a snapshot that lacks something is never named.

#include "libfabricshm/optim/snapshot_writer.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricshm {

namespace {

constexpr Error kGivenUp{Errc::kClosed, 0, "snapshot: given up"};
constexpr Bytes kSliceBytes = 8 * kMiB;

// A part of a tensor, as it is in a record.
struct PartRecord {
    std::uint64_t file;
    std::uint64_t tensor;
    std::uint64_t begin;
    std::uint64_t bytes;
    std::uint64_t checksum;
};

// SIGXFSZ would end the program where EFBIG is an answer.
std::thread start_without_signals(SnapshotWriter* self, void (*body)(SnapshotWriter*)) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread(body, self);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

// Its blocks are there before the first byte: a full disk is found early, and a direct write does
// not make the file longer, which the kernel would do for one write at a time.
Result<void> reserve(const DiskFile& file, const PlannedFile& planned,
                     const SnapshotStage::Extent& extent) {
    struct stat now {};
    if (::fstat(file.buffered(), &now) != 0) return error_of_disk(errno, "stat");
    const auto bytes = static_cast<off_t>(planned.bytes);
    // To the same length by all ranks.
    if (now.st_size < bytes && ::ftruncate(file.buffered(), bytes) != 0) {
        return error_of_disk(errno, "make a file longer");
    }
    const int made = ::fallocate(file.buffered(), 0, static_cast<off_t>(extent.offset),
                                 static_cast<off_t>(extent.bytes));
    if (made == 0 || errno == EOPNOTSUPP) return {};
    return error_of_disk(errno, "reserve room for a file");
}

}  // namespace

SnapshotWriter::SnapshotWriter(SnapshotJob job) : job_(std::move(job)), directory_(job_.directory) {
    thread_ = start_without_signals(this, [](SnapshotWriter* self) { self->run(); });
}

SnapshotWriter::~SnapshotWriter() {
    // Relaxed: nothing comes with it.
    gives_up_.store(true, std::memory_order_relaxed);
    thread_.join();
}

bool SnapshotWriter::wait_until(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return over_; });
}

void SnapshotWriter::run() noexcept {
    report_.step = job_.plan.stamp.step;
    FAULT_POINT("snapshot.begun");
    if (const auto written = write(); !written.ok()) {
        error_ = written.error();
        reason_ = explanation_of(error_);
    }
    report_.total = Clock::now() - begun_;
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
}

Result<void> SnapshotWriter::write() {
    const SnapshotStamp& stamp = job_.plan.stamp;
    if (job_.rank == 0) directory_.remove_partials(stamp);
    FABRIC_TRY_VOID(directory_.prepare(stamp));
    const std::string at = directory_.partial_path(stamp);
    std::vector<DiskFile> files(job_.plan.files.size());
    for (const SnapshotStage::Extent& extent : job_.stage->extents()) {
        const PlannedFile& planned = job_.plan.files[extent.file];
        const std::string path = at + "/" + planned.name;
        DiskFile& file = files[extent.file];
        if (file.buffered() < 0) {
            auto opened = DiskFile::open(path);
            if (!opened.ok()) return explain_disk(opened.error(), path);
            file = std::move(opened).value();
        }
        if (const auto room = reserve(file, planned, extent); !room.ok()) {
            return explain_disk(room.error(), path);
        }
    }
    {
        DiskWriter writer(job_.stage->memory(), job_.uring);
        const auto written = write_extents(writer, files);
        const auto finished = writer.finish();
        report_.path = writer.path();
        if (!written.ok()) return written;
        if (!finished.ok()) return explain_disk(finished.error(), at);
    }
    FAULT_POINT("snapshot.written");
    for (const DiskFile& file : files) {
        if (file.buffered() < 0) continue;
        if (const auto synced = file.sync(); !synced.ok()) return explain_disk(synced.error(), at);
    }
    FABRIC_TRY_VOID(record_parts());
    FAULT_POINT("snapshot.recorded");
    return name_if_last();
}

// While the disk writes a slice, its checksums are worked out, and the next one is saved with its
// states: by the time the parameters are written all is saved.
Result<void> SnapshotWriter::write_extents(DiskWriter& writer, std::vector<DiskFile>& files) {
    for (const SnapshotStage::Extent& extent : job_.stage->extents()) {
        for (Bytes done = 0; done < extent.bytes;) {
            if (gives_up_.load(std::memory_order_relaxed)) return kGivenUp;
            // Ends with a block of the file, so that all but the first begin with one.
            const Bytes offset = extent.offset + done;
            const Bytes end = std::min(extent.offset + extent.bytes,
                                       (offset + kSliceBytes) / kDiskBlock * kDiskBlock);
            job_.stage->save_staged(extent.data + done, extent.data + done + (end - offset));
            const auto written =
                writer.write(files[extent.file], extent.data + done, end - offset, offset);
            if (!written.ok()) {
                return explain_disk(written.error(), job_.plan.files[extent.file].name);
            }
            add_checksums(extent.data + done + (end - offset));
            done += end - offset;
            FAULT_POINT("snapshot.slice");
        }
        report_.bytes += extent.bytes;
        if (report_.staged != Duration{}) continue;
        // The parameters are through, or as much of them as is in one file.
        job_.stage->save_all();
        report_.staged = Clock::now() - begun_;
        FAULT_POINT("snapshot.saved");
    }
    return {};
}

// Of what lies before `end` in the stage: extents and parts are in the same order.
void SnapshotWriter::add_checksums(const std::byte* end) {
    const std::vector<SnapshotStage::Part>& parts = job_.stage->parts();
    while (next_part_ < parts.size() && parts[next_part_].data + part_bytes_ < end) {
        const SnapshotStage::Part& part = parts[next_part_];
        const Bytes whole = part.elements.count() * sizeof(float);
        const Bytes now = std::min(whole, static_cast<Bytes>(end - part.data)) - part_bytes_;
        if (part_bytes_ == 0) checksums_.push_back(0);
        checksums_.back() = crc32c(part.data + part_bytes_, now, checksums_.back());
        part_bytes_ += now;
        if (part_bytes_ < whole) return;
        ++next_part_;
        part_bytes_ = 0;
    }
}

std::string SnapshotWriter::part_path(int rank) const {
    return directory_.partial_path(job_.plan.stamp) + "/part-" + std::to_string(rank);
}

std::string SnapshotWriter::claimed_path(int rank) const {
    return part_path(rank) + (rank == 0 ? ".claimed" : "");
}

Result<void> SnapshotWriter::record_parts() {
    std::string text;
    for (std::size_t i = 0; i < checksums_.size(); ++i) {
        const SnapshotStage::Part& part = job_.stage->parts()[i];
        const PartRecord record{part.file, part.tensor, part.elements.begin,
                                part.elements.count() * sizeof(float), checksums_[i]};
        text.append(reinterpret_cast<const char*>(&record), sizeof record);
    }
    const std::string path = part_path(job_.rank);
    FABRIC_TRY_VOID(write_text(path + ".new", text));
    if (::rename((path + ".new").c_str(), path.c_str()) == 0) return {};
    return explain_disk(error_of_disk(errno, "name a record"), path);
}

// Of each tensor of each file; kCorrupt when the parts of a tensor do not add up to it.
Result<std::vector<std::vector<std::uint32_t>>> SnapshotWriter::read_checksums(
    const std::string& at) {
    const SnapshotPlan& plan = job_.plan;
    std::vector<std::vector<std::uint32_t>> found;
    std::vector<std::vector<Bytes>> seen;
    for (const PlannedFile& file : plan.files) {
        found.emplace_back(file.tensors.size(), 0);
        seen.emplace_back(file.tensors.size(), 0);
    }
    const auto corrupt = [&] {
        return explain({Errc::kCorrupt, 0, "snapshot"}, "%s: what the ranks wrote does not add up",
                       at.c_str());
    };
    // By rank, whose shards follow each other: parts of a tensor come in order.
    for (int rank = 0; rank < job_.world; ++rank) {
        const Fd file(::open(claimed_path(rank).c_str(), O_RDONLY | O_CLOEXEC));
        if (!file) return explain_disk(error_of_disk(errno, "read a record"), at);
        PartRecord record{};
        ssize_t length = 0;
        while ((length = ::read(file.get(), &record, sizeof record)) == sizeof record) {
            if (record.file >= found.size() || record.tensor >= found[record.file].size()) {
                return corrupt();
            }
            std::uint32_t& sum = found[record.file][record.tensor];
            sum = crc32c_joined(sum, static_cast<std::uint32_t>(record.checksum), record.bytes);
            seen[record.file][record.tensor] += record.bytes;
        }
        if (length != 0) return corrupt();
    }
    for (std::size_t f = 0; f < found.size(); ++f) {
        for (std::size_t t = 0; t < found[f].size(); ++t) {
            if (seen[f][t] != plan.files[f].tensors[t].bytes) return corrupt();
        }
    }
    return found;
}

Result<void> SnapshotWriter::finish_files(const std::string& at) {
    FABRIC_TRY(const auto checksums, read_checksums(at));
    for (std::size_t i = 0; i < job_.plan.files.size(); ++i) {
        const std::string path = at + "/" + job_.plan.files[i].name;
        const std::string header = format_header(job_.plan.header_of(job_.spec, i, checksums[i]));
        auto file = DiskFile::open(path);
        if (!file.ok()) return explain_disk(file.error(), path);
        auto written = write_all(
            file->buffered(), reinterpret_cast<const std::byte*>(header.data()), header.size(), 0);
        if (written.ok()) written = file->sync();
        if (!written.ok()) return explain_disk(written.error(), path);
    }
    FAULT_POINT("snapshot.headers");
    for (const SnapshotPlan::Index& index : job_.plan.indices()) {
        FABRIC_TRY_VOID(write_text(at + "/" + index.name, index.text));
    }
    for (int rank = 0; rank < job_.world; ++rank) ::unlink(claimed_path(rank).c_str());
    return {};
}

Result<void> SnapshotWriter::name_if_last() {
    const std::string at = directory_.partial_path(job_.plan.stamp);
    for (int rank = 0; rank < job_.world; ++rank) {
        if (::access(part_path(rank).c_str(), F_OK) != 0) return {};
    }
    // Two that come last at the same time both get here. One of them renames the record of rank 0,
    // which never comes back; the other does not find it any more.
    if (::rename(part_path(0).c_str(), claimed_path(0).c_str()) != 0) {
        if (errno == ENOENT) return {};
        return explain_disk(error_of_disk(errno, "claim a snapshot"), at);
    }
    FABRIC_TRY_VOID(finish_files(at));
    FABRIC_TRY_VOID(directory_.commit(job_.plan.stamp));
    report_.named = true;
    directory_.prune(job_.plan.stamp, job_.keep);
    return {};
}

}  // namespace fabricshm
