#include "fabricd/data/serve/writes.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/random.hpp"
#include "libfabricshm/shm/data_layout.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace fabricd {

using namespace fabricshm::proto;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::kDataChunkBytes;
using fabricshm::kNoLine;

namespace {

constexpr std::size_t kMostOpen = 64;  // each may have most of a chunk that is not in the cache
constexpr Bytes kMostAtOnce = 16 * fabricshm::kMiB;
constexpr std::size_t kShownLost = 10;
// The first word of a version that no silo has given: web servers' begin with a small byte that is
// not 0, and the first word of a folder's file is its size.
constexpr std::uint64_t kUnwrittenVersion = 0xfab71c0000000000U;

std::uint64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
           static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t random_token() {
    std::uint64_t token = 0;
    const auto filled = fabricshm::fill_random(std::as_writable_bytes(std::span(&token, 1)));
    return filled.ok() ? token : static_cast<std::uint64_t>(fabricshm::monotonic_ns());
}

Outcome outcome_of_step(const Written& written) {
    return {written.error.code, written.error.detail, written.reason};
}

// Of memory alone: what else a descriptor may be could keep its reader waiting.
bool is_memory_file(int fd) {
    return fd >= 0 && ::fcntl(fd, F_GET_SEALS) >= 0;
}

}  // namespace

Writes::Writes(Options options, ServiceParts& parts, EventLoop& loop)
    : options_(std::move(options)),
      parts_(parts),
      loop_(loop),
      workers_(parts.spec.silos.size()),
      unwritten_(parts.spec.silos.size()) {}

Result<std::unique_ptr<Writes>> Writes::start(Options options, ServiceParts& parts,
                                              EventLoop& loop) {
    std::unique_ptr<Writes> writes(new Writes(std::move(options), parts, loop));
    FABRIC_TRY_VOID(writes->open());
    return writes;
}

Result<void> Writes::open() {
    std::vector<LoggedWrite> left;
    FABRIC_TRY(log_, WriteLog::open(options_.log, left));
    for (std::uint32_t silo = 0; silo < parts_.spec.silos.size(); ++silo) {
        const SiloSpec& spec = parts_.spec.silos[silo];
        WriteWorker::Options worker;
        for (const LoggedWrite& write : left) {
            if (write.at != spec.at) continue;
            worker.to_clear.push_back(write.name);
            if (!write.is_answered) continue;
            // What readers may still have of it is not what the silo has.
            const KnownFile* file = parts_.files.find(silo, write.name.path);
            if (file != nullptr && file->facts.version.words[0] == kUnwrittenVersion) {
                parts_.files.forget(file->id);
            }
            const std::string path = spec.at + "/" + printable(write.name.path);
            fabricshm::log(fabricshm::LogLevel::kError,
                           "%s: its commit was answered (write = \"back\"), and the service ended "
                           "before the silo had answered: look whether it is there",
                           path.c_str());
            ++stats_.lost_count;
            if (stats_.lost.size() < kShownLost) stats_.lost.push_back(path);
        }
        if (spec.write == WritePolicy::kOff) continue;
        worker.on_cleared = [this](const WriteName& name, const Error& error,
                                   const std::string& reason) {
            loop_.post([this, name, error, reason] {
                if (error.code == Errc::kOk) return log_.end(name.token);
                fabricshm::log(fabricshm::LogLevel::kWarning,
                               "what an earlier service wrote is not cleared: %s", reason.c_str());
            });
        };
        worker.on_done = [this](Written written) {
            loop_.post([this, written = std::move(written)] { took(written); });
        };
        FABRIC_TRY(workers_[silo], WriteWorker::start(spec, std::move(worker)));
    }
    parts_.listings.unwritten = [this](std::uint32_t silo) -> const Listings::Unwritten& {
        return unwritten_[silo];
    };
    return {};
}

Writes::~Writes() {
    // Behind this no worker reads the arena, and none posts.
    workers_.clear();
    parts_.listings.unwritten = nullptr;
}

void Writes::handle(DataRequest request, Reply reply) {
    switch (request.message.type) {
        case DataType::kCreate:
            return create(request, reply);
        case DataType::kWrite:
            return append(request, reply);
        case DataType::kCommit:
            return commit(request, reply);
        case DataType::kAbort:
            return abort(request, reply);
        default:
            break;
    }
    FABRIC_CHECK(false);
}

// --- requests ---

Outcome Writes::why_not(const std::string& path, std::uint32_t silo,
                        const std::string& inside) const {
    const SiloSpec& spec = parts_.spec.silos[silo];
    if (spec.from.starts_with("http")) {
        return {Errc::kUnsupported, 0, spec.at + ": files of a web server are read only"};
    }
    if (workers_[silo] == nullptr) {
        return {Errc::kDenied, 0,
                spec.at + " is read-only (write, in its section of the data file)"};
    }
    if (names_.contains({silo, inside})) {
        return {Errc::kExists, 0, printable(path) + " is being written already"};
    }
    const auto open = std::count_if(writes_.begin(), writes_.end(),
                                    [](const auto& one) { return one.second.file == 0; });
    if (static_cast<std::size_t>(open) >= kMostOpen) {
        return {Errc::kBusy, 0, "64 files are being written already"};
    }
    return {};
}

void Writes::create(const DataRequest& request, const Reply& reply) {
    const std::string& path = request.message.payload;
    const auto place = parts_.listings.place_of(path);
    if (!place) return reply({Errc::kNotFound, 0, printable(path) + " lies in no silo"}, "");
    const Outcome outcome = why_not(path, place->silo, place->path);
    if (outcome.code != Errc::kOk) return reply(outcome, "");
    const std::uint64_t id = ++last_;
    Write& write = writes_[id];
    write.connection = request.connection;
    write.silo = place->silo;
    write.name.path = place->path;
    write.is_back = parts_.spec.silos[place->silo].write == WritePolicy::kBack;
    names_.insert({place->silo, place->path});
    write.waiting.push_back(reply);
    begin(id, write);
}

// Under a token of its own each time: what an attempt leaves is its own.
void Writes::begin(std::uint64_t id, Write& write) {
    write.name.token = random_token();
    const auto logged = log_.begin(parts_.spec.silos[write.silo].at, write.name);
    if (!logged.ok()) {
        // The silo has not heard of it.
        answer(write, outcome_of(logged.error()));
        if (write.file == 0) return end(id);
        write.retry = Clock::now() + options_.retry_pause;
        return;
    }
    if (write.file != 0) static_cast<void>(log_.answered(write.name.token).ok());
    workers_[write.silo]->begin(id, write.name, add_step(id, Kind::kBegin));
}

std::uint64_t Writes::add_step(std::uint64_t id, Kind kind) {
    const std::uint64_t tag = ++last_;
    steps_[tag] = {id, kind};
    return tag;
}

Writes::Write* Writes::find(std::uint64_t id, std::uint64_t connection) {
    const auto found = writes_.find(id);
    // Of another connection, ended, or with its commit behind it.
    const bool is_its = found != writes_.end() && found->second.connection == connection &&
                        found->second.is_begun && !found->second.is_over &&
                        !found->second.is_asked_commit;
    return is_its ? &found->second : nullptr;
}

void Writes::append(const DataRequest& request, const Reply& reply) {
    const auto wanted = data_fixed<DataWriteRequest>(request.message.payload);
    if (!wanted) return reply({Errc::kInvalid, 0, "the request is malformed"}, "");
    Write* const write = find(wanted->write, request.connection);
    if (write == nullptr) return reply({Errc::kNotFound, 0, "no such file is being written"}, "");
    if (write->failed.code != Errc::kOk) return reply(write->failed, "");
    if (wanted->bytes > kMostAtOnce || !is_memory_file(request.descriptor.get())) {
        return reply({Errc::kInvalid, 0, "bytes come in a memory file, at most 16 MiB at once"},
                     "");
    }
    if (!write->waiting.empty()) {
        return reply({Errc::kBusy, 0, "the bytes before these are not taken yet"}, "");
    }
    const auto taken = take_bytes(wanted->write, *write, request.descriptor.get(), wanted->bytes);
    if (!taken.ok()) {
        write->failed = outcome_of(taken.error());
        return reply(write->failed, "");
    }
    // The next come when there is room.
    if (on_the_way_ > options_.on_the_way) {
        write->waiting.push_back(reply);
        return;
    }
    reply({}, "");
}

void Writes::commit(const DataRequest& request, const Reply& reply) {
    const auto wanted = data_fixed<DataWriteEnd>(request.message.payload);
    if (!wanted) return reply({Errc::kInvalid, 0, "the request is malformed"}, "");
    Write* const write = find(wanted->write, request.connection);
    if (write == nullptr) return reply({Errc::kNotFound, 0, "no such file is being written"}, "");
    write->is_asked_commit = true;
    if (write->failed.code == Errc::kOk && !write->tail.empty()) cut_chunk(wanted->write, *write);
    write->waiting.push_back(reply);
    if (write->failed.code != Errc::kOk) return fail(wanted->write, *write, write->failed);
    if (write->is_back) return publish_back(wanted->write, *write);
    go_on(wanted->write, *write);
}

void Writes::abort(const DataRequest& request, const Reply& reply) {
    const auto wanted = data_fixed<DataWriteEnd>(request.message.payload);
    if (!wanted) return reply({Errc::kInvalid, 0, "the request is malformed"}, "");
    Write* const write = find(wanted->write, request.connection);
    if (write == nullptr) return reply({Errc::kNotFound, 0, "no such file is being written"}, "");
    answer(*write, {Errc::kClosed, 0, "the file was aborted"});
    write->waiting.push_back(reply);
    give_up(wanted->write, *write);
}

void Writes::end_connection(std::uint64_t connection) {
    std::vector<std::uint64_t> its;
    for (auto& [id, write] : writes_) {
        if (write.connection == connection) its.push_back(id);
    }
    for (const auto id : its) {
        Write& write = writes_.at(id);
        write.connection = 0;
        write.waiting.clear();
        // What was asked to be committed is.
        if (!write.is_asked_commit && !write.is_over) give_up(id, write);
    }
}

// --- bytes ---

Result<void> Writes::take_bytes(std::uint64_t id, Write& write, int file, Bytes bytes) {
    for (Bytes done = 0; done < bytes;) {
        const Bytes at = write.tail.size();
        const Bytes more = std::min(bytes - done, kDataChunkBytes - at);
        write.tail.resize(at + more);
        Bytes got = 0;
        while (got < more) {
            const ssize_t count = ::pread(file, write.tail.data() + at + got, more - got,
                                          static_cast<off_t>(done + got));
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) {
                return explain({Errc::kInvalid, 0, "write file"},
                               "the memory file has fewer bytes than the request says");
            }
            got += static_cast<Bytes>(count);
        }
        done += more;
        if (write.tail.size() == kDataChunkBytes) cut_chunk(id, write);
    }
    return {};
}

// What was collected becomes a chunk: in the cache, where it has room, and on its way to the silo.
void Writes::cut_chunk(std::uint64_t id, Write& write) {
    Chunk chunk;
    chunk.line = kNoLine;
    chunk.bytes = write.tail.size();
    const auto bytes = static_cast<std::uint32_t>(chunk.bytes);
    if (const auto line = parts_.cache.add_file(parts_.files.take_id(), chunk.bytes)) {
        const auto room = parts_.cache.begin(*line, bytes, ChunkKind::kTried, true);
        if (room) {
            std::memcpy(room->into, write.tail.data(), chunk.bytes);
            parts_.cache.finish(*line, fabricshm::crc32c(write.tail.data(), chunk.bytes));
            chunk.line = *line;
        } else {
            parts_.cache.retire(*line, 1);
        }
    }
    write.bytes += chunk.bytes;
    on_the_way_ += chunk.bytes;
    chunk.is_counted = true;
    // Held memory is what readers can't have: a quarter of it at most.
    chunk.is_held = chunk.line != kNoLine && on_the_way_ <= parts_.cache.capacity() / 4;
    if (chunk.is_held) {
        parts_.cache.hold(chunk.line);
        write.tail.clear();
    } else {
        chunk.own = std::make_shared<const std::vector<std::byte>>(std::move(write.tail));
        write.tail = {};
        write.is_back = false;
    }
    write.chunks.push_back(std::move(chunk));
    FAULT_POINT("data.write.cached");
    if (!write.is_back) send_chunks(id, write);
}

void Writes::send_chunks(std::uint64_t id, Write& write) {
    if (!write.is_begun || write.is_over) return;
    for (; write.sent < write.chunks.size(); ++write.sent) {
        const Chunk& chunk = write.chunks[write.sent];
        const std::byte* const bytes =
            chunk.own != nullptr ? chunk.own->data() : parts_.cache.bytes_of(chunk.line).data();
        workers_[write.silo]->append(id, bytes, chunk.bytes, add_step(id, Kind::kAppend));
    }
}

void Writes::let_go(Chunk& chunk) {
    if (chunk.is_held) parts_.cache.let_go(chunk.line);
    if (chunk.is_counted) on_the_way_ -= chunk.bytes;
    chunk.is_held = chunk.is_counted = false;
    chunk.own = nullptr;
}

void Writes::go_on(std::uint64_t id, Write& write) {
    if (!write.is_begun || write.is_over) return;
    send_chunks(id, write);
    if (!write.is_asked_commit || write.is_committing || write.written < write.chunks.size()) {
        return;
    }
    write.is_committing = true;
    workers_[write.silo]->commit(id, add_step(id, Kind::kCommit));
}

// --- results ---

void Writes::took(const Written& written) {
    const auto found = steps_.find(written.tag);
    FABRIC_CHECK(found != steps_.end());
    const Step step = found->second;
    steps_.erase(found);
    const std::uint64_t id = step.write;
    const auto write = writes_.find(id);
    FABRIC_CHECK(write != writes_.end());
    switch (step.kind) {
        case Kind::kAppend:
            return took_append(id, write->second, written);
        case Kind::kCommit:
            return took_commit(id, write->second, written);
        case Kind::kAbort:
            return took_abort(id, write->second, written);
        case Kind::kBegin:
            break;
    }
    Write& begun = write->second;
    if (begun.is_over) return;
    if (!written.ok()) return fail(id, begun, outcome_of_step(written));
    begun.is_begun = true;
    if (begun.file != 0) return go_on(id, begun);
    answer(begun, {}, data_payload(DataCreateReply{id}));
}

void Writes::took_append(std::uint64_t id, Write& write, const Written& written) {
    Chunk& chunk = write.chunks[write.written++];
    // Until the silo has the whole file it may have to be read again.
    const bool is_needed = write.file != 0 || write.is_over;
    if (!is_needed) {
        let_go(chunk);
        answer_waiting();
    }
    if (write.is_over) return;
    if (!written.ok()) {
        if (write.is_asked_commit) return fail(id, write, outcome_of_step(written));
        // The next request hears of it.
        if (write.failed.code == Errc::kOk) write.failed = outcome_of_step(written);
        return;
    }
    go_on(id, write);
}

// The lines without a name become the file's.
const KnownFile* Writes::publish(Write& write, const FileFacts& facts) {
    const auto seen = parts_.files.see(write.silo, write.name.path, facts, Clock::now());
    if (!seen.ok()) {
        fabricshm::log(fabricshm::LogLevel::kWarning, "%s", describe(seen.error()).c_str());
        return nullptr;
    }
    const KnownFile* const file = *seen;
    for (std::size_t i = 0; i < write.chunks.size(); ++i) {
        Chunk& chunk = write.chunks[i];
        if (chunk.line == kNoLine) continue;
        const std::uint64_t line = file->first_line + i;
        // Evicted meanwhile, or a listing was faster and a reader has fetched it.
        const bool is_free = parts_.cache.state(line) == DataLineState::kEmpty;
        if (is_free && parts_.cache.state(chunk.line) == DataLineState::kReady) {
            parts_.cache.hand_over(chunk.line, line);
        } else {
            let_go(chunk);
            parts_.cache.retire(chunk.line, 1);
        }
        chunk.line = line;
    }
    FAULT_POINT("data.write.published");
    parts_.listings.expire(write.silo);
    return file;
}

void Writes::publish_back(std::uint64_t id, Write& write) {
    const auto logged = log_.answered(write.name.token);
    const FileFacts facts{write.bytes, {{kUnwrittenVersion, now_ns(), write.name.token, id}}};
    const KnownFile* const file = logged.ok() ? publish(write, facts) : nullptr;
    if (file == nullptr) {
        // As "through": the silo has to have it first.
        write.is_back = false;
        return go_on(id, write);
    }
    write.file = file->id;
    unwritten_[write.silo][write.name.path] = facts;
    answer(write, {});
    go_on(id, write);
}

void Writes::took_commit(std::uint64_t id, Write& write, const Written& written) {
    write.is_committing = false;
    if (!written.ok()) return fail(id, write, outcome_of_step(written));
    if (write.file != 0) {
        unwritten_[write.silo].erase(write.name.path);
        parts_.files.confirm(write.file, written.facts);
        parts_.listings.expire(write.silo);
    } else {
        const bool is_published = publish(write, written.facts) != nullptr;
        // Its lines are the file's now.
        if (is_published) {
            for (Chunk& chunk : write.chunks) chunk.line = kNoLine;
        }
    }
    ++stats_.committed;
    answer(write, {});
    end(id);
}

// An upload is tried again; whatever else is given up.
void Writes::fail(std::uint64_t id, Write& write, const Outcome& outcome) {
    stats_.last_failure = outcome.text;
    if (write.file != 0) {
        ++stats_.failed_uploads;
        fabricshm::log(fabricshm::LogLevel::kWarning, "upload of %s: %s",
                       printable(write.name.path).c_str(), outcome.text.c_str());
    }
    write.failed = outcome;
    answer(write, outcome);
    give_up(id, write);
}

void Writes::give_up(std::uint64_t id, Write& write) {
    write.is_over = true;
    if (write.is_aborting) return;
    write.is_aborting = true;
    workers_[write.silo]->abort(id, add_step(id, Kind::kAbort));
}

void Writes::took_abort(std::uint64_t id, Write& write, const Written& written) {
    if (!written.ok()) {
        fabricshm::log(fabricshm::LogLevel::kWarning, "what was written of %s is left: %s",
                       printable(write.name.path).c_str(), written.reason.c_str());
    } else if (write.file == 0) {
        log_.end(write.name.token);
    }
    if (write.file == 0 || write.failed.code == Errc::kExists) {
        if (write.file != 0) {
            // Another writer, past this service, has taken the name: there is no way for it.
            unwritten_[write.silo].erase(write.name.path);
            parts_.files.forget(write.file);
            parts_.listings.expire(write.silo);
            log_.end(write.name.token);
            const std::string path =
                parts_.spec.silos[write.silo].at + "/" + printable(write.name.path);
            ++stats_.lost_count;
            if (stats_.lost.size() < kShownLost) stats_.lost.push_back(path);
        }
        ++stats_.aborted;
        answer(write, {});
        return end(id);
    }
    // The record of this attempt goes when the next one has begun its own.
    write.is_cleared = written.ok();
    write.sent = write.written = 0;
    write.is_begun = write.is_over = write.is_aborting = false;
    write.failed = {};
    write.retry = Clock::now() + options_.retry_pause;
}

void Writes::answer(Write& write, const Outcome& outcome, const std::string& payload) {
    for (const Reply& reply : std::exchange(write.waiting, {})) reply(outcome, payload);
}

void Writes::release(Write& write) {
    for (Chunk& chunk : write.chunks) {
        let_go(chunk);
        if (chunk.line != kNoLine && write.file == 0) parts_.cache.retire(chunk.line, 1);
    }
}

void Writes::end(std::uint64_t id) {
    Write& write = writes_.at(id);
    release(write);
    if (!write.is_over) log_.end(write.name.token);
    names_.erase({write.silo, write.name.path});
    writes_.erase(id);
}

// Bytes that were taken are answered when others have found room; errors at once.
void Writes::answer_waiting() {
    for (auto& [id, write] : writes_) {
        const bool waits =
            !write.waiting.empty() && write.is_begun && !write.is_over && !write.is_asked_commit;
        if (!waits) continue;
        const bool has_failed = write.failed.code != Errc::kOk;
        if (has_failed || on_the_way_ <= options_.on_the_way) answer(write, write.failed);
    }
}

void Writes::tick(TimePoint now) {
    answer_waiting();
    std::vector<std::uint64_t> due;
    for (const auto& [id, write] : writes_) {
        if (write.retry != fabricshm::kNoWait && write.retry <= now) due.push_back(id);
    }
    for (const auto id : due) {
        Write& write = writes_.at(id);
        write.retry = fabricshm::kNoWait;
        const std::uint64_t before = write.name.token;
        begin(id, write);
        // Not before the next attempt has a record: a kill in between would hide the loss.
        if (write.is_cleared && write.name.token != before) log_.end(before);
    }
}

WriteDesk::Stats Writes::stats() const {
    Stats stats = stats_;
    for (const auto& [id, write] : writes_) {
        if (write.file == 0) {
            ++stats.open;
            continue;
        }
        ++stats.pending;
        stats.pending_bytes += write.bytes;
    }
    return stats;
}

}  // namespace fabricd
