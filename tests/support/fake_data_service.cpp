#include "tests/support/fake_data_service.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace test_support {

using namespace fabricshm;
using proto::DataType;

namespace {

// splitmix64's last step: neighbours have nothing in common.
std::uint64_t mixed(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

std::uint64_t seed_of(const std::string& path, std::uint64_t version) {
    std::uint64_t seed = 0xcbf29ce484222325ULL;
    for (const unsigned char c : path) seed = (seed ^ c) * 0x100000001b3ULL;
    return mixed(seed + version * 0x9e3779b97f4a7c15ULL);
}

std::uint64_t word_at(std::uint64_t seed, std::uint64_t offset) {
    return mixed(seed ^ (offset / 8 + 1) * 0x9e3779b97f4a7c15ULL);
}

std::uint8_t byte_at(std::uint64_t seed, std::uint64_t offset) {
    return static_cast<std::uint8_t>(word_at(seed, offset) >> (offset % 8 * 8));
}

Fd memory_file(const char* name, Bytes bytes) {
    Fd file(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    FABRIC_CHECK(file && ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
    return file;
}

constexpr Bytes kPagesHeader = 128;

}  // namespace

std::uint8_t data_byte(const std::string& path, std::uint64_t version, std::uint64_t offset) {
    return byte_at(seed_of(path, version), offset);
}

std::size_t wrong_bytes(const std::byte* bytes, std::size_t count, const std::string& path,
                        std::uint64_t version, std::uint64_t offset) {
    const std::uint64_t seed = seed_of(path, version);
    std::size_t wrong = 0;
    std::size_t i = 0;
    for (; i < count && (offset + i) % 8 != 0; ++i) {
        wrong += bytes[i] != std::byte{byte_at(seed, offset + i)} ? 1 : 0;
    }
    for (; i + 8 <= count; i += 8) {
        std::uint64_t word;
        std::memcpy(&word, bytes + i, sizeof word);
        if (word != word_at(seed, offset + i)) ++wrong;
    }
    for (; i < count; ++i) wrong += bytes[i] != std::byte{byte_at(seed, offset + i)} ? 1 : 0;
    return wrong;
}

FakeDataService::FakeDataService(const Options& options)
    : options_(options), socket_(folder_.file("data.sock")), wake_(::eventfd(0, EFD_CLOEXEC)) {
    const Fd file = memory_file("pin pages", kPagesHeader + kMaxPages * sizeof(PinPage));
    pages_ = Mapping::map(file, 0, kPagesHeader + kMaxPages * sizeof(PinPage), {}).value();
    make_arena();
    start();
}

FakeDataService::~FakeDataService() {
    die();
}

PinPage* FakeDataService::pages() const {
    return reinterpret_cast<PinPage*>(pages_.data() + kPagesHeader);
}

std::size_t FakeDataService::readers() const {
    const auto& used = *reinterpret_cast<const std::atomic<std::uint64_t>*>(pages_.data());
    return std::min<std::size_t>(used.load(), kMaxPages);
}

void FakeDataService::make_arena() {
    const std::uint64_t generation = tables_.generation + 1;
    const Bytes chunks = options_.slots * options_.slot_bytes;
    const Bytes bytes = round_up(sizeof(DataHeader) + options_.lines * sizeof(DataLine), 2 * kMiB) +
                        round_up(std::max(chunks, kDataChunkBytes), kPageBytes);
    tables_ = plan_data_tables(generation, options_.lines, bytes).value();
    arena_file_ = std::make_shared<Fd>(memory_file("data", bytes));
    if (arena_) old_arenas_.push_back(std::move(arena_));
    arena_ = Mapping::map(*arena_file_, 0, bytes, {}).value();
    make_tables();
}

// No line of before means anything; what readers have pinned keeps its slot.
void FakeDataService::make_tables() {
    std::vector<std::uint64_t> slots(options_.slots, 0);
    slots_ = slots;
    next_line_ = 0;
    next_file_ = 1;
    for (auto& [path, file] : files_) place(file);
    write_data_header(arena_.data(), tables_);
}

void FakeDataService::place(File& file) {
    file.number = next_file_++;
    file.first_line = file.bytes == 0 ? kNoLine : next_line_;
    next_line_ += data_chunks(file.bytes);
    FABRIC_CHECK(next_line_ <= options_.lines);
}

void FakeDataService::add(const std::string& path, Bytes bytes) {
    const std::lock_guard lock(mutex_);
    File& file = files_[path];
    file.bytes = bytes;
    place(file);
}

void FakeDataService::change(const std::string& path) {
    const std::lock_guard lock(mutex_);
    File& file = files_.at(path);
    for (std::uint64_t chunk = 0; chunk < data_chunks(file.bytes); ++chunk) {
        DataLine& gone = line(file.first_line + chunk);
        gone.word.store(data_word(data_generation(gone.word.load()), DataLineState::kGone));
    }
    file.version += 1;
    place(file);
}

DataLine& FakeDataService::line(std::uint64_t number) {
    return data_line(arena_.data(), tables_, number);
}

DataHeader& FakeDataService::header() {
    return *reinterpret_cast<DataHeader*>(arena_.data());
}

std::uint64_t FakeDataService::line_of(const std::string& path, std::uint32_t chunk) const {
    const std::lock_guard lock(mutex_);
    return files_.at(path).first_line + chunk;
}

DataOptions FakeDataService::options() {
    DataOptions options;
    options.sockets = {socket_};
    options.timeout = std::chrono::seconds(20);
    options.make_subscriber = [this]() -> SubscribeArena {
        return [this](const std::string& name, TimePoint) -> Result<DataArena> {
            if (name != "fake data") return Error{Errc::kNotFound, 0, "subscribe"};
            MapOptions read_only;
            read_only.writable = false;
            // Not under the lock: a child of fork() may have it taken.
            const std::shared_ptr<Fd> file = arena_file_;
            FABRIC_TRY(Mapping mapped, Mapping::map(*file, 0, arena_.size(), read_only));
            auto& used = *reinterpret_cast<std::atomic<std::uint64_t>*>(pages_.data());
            const std::uint64_t number = used.fetch_add(1);
            if (number >= kMaxPages) return Error{Errc::kBusy, 0, "subscribe"};
            format_pin_page(pages()[number]);
            auto owner = std::make_shared<Mapping>(std::move(mapped));
            return DataArena{owner->data(), owner->size(), &pages()[number], owner};
        };
    };
    return options;
}

// --- the maker's side ---

bool FakeDataService::is_pinned(std::uint64_t line) {
    const std::uint64_t lines[] = {line};
    std::uint8_t pinned[1];
    PinScan scan(lines, pinned);
    for (std::size_t i = 0; i < readers(); ++i) scan.page(pages()[i]);
    return scan.pinned(0);
}

bool FakeDataService::evict_locked(std::uint64_t number) {
    DataLine& leaver = line(number);
    const std::uint64_t word = leaver.word.load();
    const bool is_gone = data_state(word) == DataLineState::kGone;
    if (!is_gone && data_state(word) != DataLineState::kReady) return false;
    if (!is_gone) {
        leaver.word.store(data_word(data_generation(word), DataLineState::kLeaving),
                          std::memory_order_seq_cst);
    }
    if (is_pinned(number)) {
        leaver.word.store(word, std::memory_order_release);
        return false;
    }
    if (!is_gone) {
        leaver.word.store(data_word(data_generation(word) + 1, DataLineState::kEmpty),
                          std::memory_order_release);
    }
    const std::uint64_t slot = (leaver.offset - tables_.chunks_offset) / options_.slot_bytes;
    std::memset(arena_.data() + leaver.offset, 0xee, leaver.bytes);
    slots_[slot] = 0;
    return true;
}

bool FakeDataService::evict(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    return evict_locked(number);
}

void FakeDataService::evict_all() {
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t held : std::vector<std::uint64_t>(slots_)) {
        if (held != 0) evict_locked(held - 1);
    }
}

// options_.slots: all are pinned.
std::uint64_t FakeDataService::free_slot() {
    for (std::size_t tries = 0; tries < 2 * options_.slots; ++tries) {
        const std::size_t slot = hand_++ % options_.slots;
        if (slots_[slot] == 0 || evict_locked(slots_[slot] - 1)) return slot;
    }
    return options_.slots;
}

void FakeDataService::fill(std::uint64_t number, std::uint64_t slot, const std::string& path,
                           const File& file, std::uint32_t chunk) {
    DataLine& filled = line(number);
    const std::uint64_t generation = data_generation(filled.word.load()) + 1;
    filled.word.store(data_word(generation, DataLineState::kFilling));
    filled.offset = tables_.chunks_offset + slot * options_.slot_bytes;
    filled.bytes = data_chunk_length(file.bytes, chunk);
    filled.file = file.number;
    filled.chunk = chunk;
    FABRIC_CHECK(filled.bytes <= options_.slot_bytes);
    std::byte* const bytes = arena_.data() + filled.offset;
    const std::uint64_t seed = seed_of(path, file.version);
    for (std::uint64_t i = 0; i < filled.bytes; i += 8) {
        const std::uint64_t word = word_at(seed, chunk * kDataChunkBytes + i);
        std::memcpy(bytes + i, &word, std::min<std::uint64_t>(8, filled.bytes - i));
    }
    filled.checksum = crc32c(bytes, filled.bytes);
    slots_[slot] = number + 1;
    filled.word.store(data_word(generation, DataLineState::kReady), std::memory_order_release);
}

Error FakeDataService::fetch(const Message& request) {
    if (lies_) return {Errc::kOk, 0, ""};
    const auto wanted = proto::data_fixed<proto::DataFetchRequest>(request.payload);
    if (!wanted) return {Errc::kInvalid, 0, ""};
    for (const auto& [path, file] : files_) {
        if (file.number != wanted->file) continue;
        const std::uint64_t chunk = wanted->line - file.first_line;
        if (chunk >= data_chunks(file.bytes)) return {Errc::kInvalid, 0, ""};
        if (data_state(line(wanted->line).word.load()) == DataLineState::kReady) break;
        const std::uint64_t slot = free_slot();
        if (slot == options_.slots) return {Errc::kNoMemory, 0, ""};
        fill(wanted->line, slot, path, file, static_cast<std::uint32_t>(chunk));
        break;
    }
    const bool is_known = std::any_of(files_.begin(), files_.end(), [&](const auto& entry) {
        return entry.second.number == wanted->file;
    });
    return {is_known ? Errc::kOk : Errc::kChanged, 0, ""};
}

Error FakeDataService::list(const Message& request, Message& reply, Fd& along) {
    std::string_view path;
    const auto wanted = proto::data_fixed<proto::DataListRequest>(request.payload, &path);
    if (!wanted) return {Errc::kInvalid, 0, ""};
    const std::string prefix = std::string(path) + "/";
    std::vector<ListedFile> listed;
    for (const auto& [name, file] : files_) {
        if (!name.starts_with(prefix)) continue;
        ListedFile entry;
        entry.name = name.substr(prefix.size());
        const std::size_t slash = entry.name.find('/');
        const bool is_below = slash != std::string::npos && wanted->flags == 0;
        if (is_below) {
            entry.name.resize(slash);
            entry.is_folder = true;
            if (!listed.empty() && listed.back().name == entry.name) continue;
        } else {
            entry.bytes = file.bytes;
            entry.first_line = file.first_line;
            entry.version = {file.version, 0, 0, 0};
            entry.file = file.number;
        }
        listed.push_back(entry);
    }
    if (listed.empty()) return {Errc::kNotFound, 0, ""};
    const auto bytes = build_listing({tables_.generation, next_listing_, wanted->flags}, listed);
    along = memory_file("listing", bytes.size());
    FABRIC_CHECK(::pwrite(along.get(), bytes.data(), bytes.size(), 0) ==
                 static_cast<ssize_t>(bytes.size()));
    if (!std::exchange(unseals_, false)) {
        constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
        FABRIC_CHECK(::fcntl(along.get(), F_ADD_SEALS, kSeals) == 0);
    }
    reply.payload = proto::data_payload(proto::DataListReply{next_listing_++, listed.size()});
    return {Errc::kOk, 0, ""};
}

Error FakeDataService::write(const Message& request, const Fd& descriptor, Message& reply) {
    if (request.type == DataType::kCreate) {
        if (files_.count(request.payload) != 0 || written_.count(request.payload) != 0) {
            return {Errc::kExists, 0, ""};
        }
        const std::uint64_t number = writes_.size() + 1;
        writes_[number].path = request.payload;
        reply.payload = proto::data_payload(proto::DataCreateReply{number});
        return {Errc::kOk, 0, ""};
    }
    std::uint64_t number = 0;
    std::memcpy(&number, request.payload.data(), sizeof number);
    const auto found = writes_.find(number);
    if (found == writes_.end()) return {Errc::kNotFound, 0, ""};
    if (request.type == DataType::kWrite) {
        const auto piece = proto::data_fixed<proto::DataWriteRequest>(request.payload).value();
        std::string bytes(piece.bytes, '\0');
        const ssize_t got = ::pread(descriptor.get(), bytes.data(), bytes.size(), 0);
        if (got != static_cast<ssize_t>(bytes.size())) return {Errc::kCorrupt, 0, ""};
        found->second.bytes += bytes;
    } else {
        if (request.type == DataType::kCommit) {
            written_[found->second.path] = found->second.bytes;
        }
        writes_.erase(found);
    }
    return {Errc::kOk, 0, ""};
}

Error FakeDataService::act(const Message& request, const Fd& descriptor, Message& reply,
                           Fd& along) {
    switch (request.type) {
        case DataType::kHello: {
            proto::DataHelloReply hello{};
            std::strcpy(hello.arena, "fake data");
            hello.generation = tables_.generation;
            reply.payload = proto::data_payload(hello);
            return {Errc::kOk, 0, ""};
        }
        case DataType::kList:
            return list(request, reply, along);
        case DataType::kFetch:
            return fetch(request);
        case DataType::kPlan:
            last_plan_ = proto::data_fixed<proto::DataPlanRequest>(request.payload).value();
            return {Errc::kOk, 0, ""};
        case DataType::kCreate:
        case DataType::kWrite:
        case DataType::kCommit:
        case DataType::kAbort:
            return write(request, descriptor, reply);
        default:
            return {Errc::kUnsupported, 0, ""};
    }
}

// --- the socket ---

void FakeDataService::start() {
    listener_ = UnixSocket::listen(socket_, 0600, 64).value();
    stopping_ = false;
    thread_ = std::thread([this] { run(); });
}

void FakeDataService::die() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    const std::uint64_t one = 1;
    FABRIC_CHECK(::write(wake_.get(), &one, sizeof one) == sizeof one);
    if (thread_.joinable()) thread_.join();
    std::uint64_t drained = 0;
    FABRIC_CHECK(::read(wake_.get(), &drained, sizeof drained) == sizeof drained);
    const std::lock_guard lock(mutex_);
    listener_.reset();
    connections_.clear();
    held_.clear();
    ::unlink(socket_.c_str());
}

void FakeDataService::come_back() {
    start();
}

void FakeDataService::come_back_anew() {
    {
        const std::lock_guard lock(mutex_);
        erase_data_header(arena_.data());
        tables_.generation += 1;
        for (std::uint64_t i = 0; i < tables_.lines; ++i) {
            DataLine& old = line(i);
            const std::uint64_t word = old.word.load();
            const bool has_slot = old.bytes != 0 && (data_state(word) == DataLineState::kReady ||
                                                     data_state(word) == DataLineState::kGone);
            // A test that holds a view here takes care not to want more slots than are left.
            if (has_slot && is_pinned(i)) continue;
            old.word.store(data_word(data_generation(word) + 1, DataLineState::kEmpty));
        }
        const std::vector<std::uint64_t> before = slots_;
        make_tables();
        for (std::size_t slot = 0; slot < before.size(); ++slot) {
            if (before[slot] != 0 && is_pinned(before[slot] - 1)) slots_[slot] = before[slot];
        }
        next_line_ = 0;
        // Behind the lines that are pinned, which stay as they are, and in another order.
        next_line_ = options_.lines / 2;
        next_file_ = 1;
        for (auto file = files_.rbegin(); file != files_.rend(); ++file) place(file->second);
    }
    start();
}

void FakeDataService::come_back_elsewhere() {
    {
        const std::lock_guard lock(mutex_);
        make_arena();
    }
    start();
}

void FakeDataService::run() {
    for (;;) {
        std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
        std::vector<std::uint64_t> numbers;
        {
            const std::lock_guard lock(mutex_);
            if (stopping_) return;
            for (const auto& [number, connection] : connections_) {
                watched.push_back({connection.get(), POLLIN, 0});
                numbers.push_back(number);
            }
        }
        if (::poll(watched.data(), watched.size(), -1) < 0) continue;
        if ((watched[1].revents & POLLIN) != 0) {
            auto accepted = listener_.accept(kNoWait);
            const std::lock_guard lock(mutex_);
            if (accepted.ok()) connections_[++last_connection_] = std::move(*accepted);
        }
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            if (watched[i + 2].revents != 0) read_from(numbers[i]);
        }
    }
}

void FakeDataService::read_from(std::uint64_t number) {
    std::array<std::byte, proto::kDataPacketMax> buffer;
    Fd descriptor;
    Result<Received> received = Error{Errc::kClosed, 0, ""};
    {
        const std::lock_guard lock(mutex_);
        received = connections_.at(number).receive(buffer, std::span(&descriptor, 1), kNoWait);
        if (!received.ok() && received.error().code == Errc::kTimeout) return;
        if (!received.ok()) {
            connections_.erase(number);
            arrived_.notify_all();
            return;
        }
    }
    auto request = proto::decode_data_message(std::span(buffer).first(received->bytes));
    if (request.ok()) handle(number, *request, std::move(descriptor));
}

void FakeDataService::handle(std::uint64_t connection, const Message& request, Fd descriptor) {
    const std::lock_guard lock(mutex_);
    ++counts_[request.type];
    arrived_.notify_all();
    if (request.type == DataType::kFetch && holds_) {
        held_.push_back({connection, request});
        return;
    }
    Message reply;
    Fd along;
    Error error{Errc::kOk, 0, ""};
    if (const auto refusal = refusals_.find(request.type); refusal != refusals_.end()) {
        error.code = refusal->second.first;
        reply.payload = refusal->second.second;
        refusals_.erase(refusal);
    } else {
        error = act(request, descriptor, reply, along);
    }
    send(connection, request, error, std::move(reply), along);
}

void FakeDataService::send(std::uint64_t connection, const Message& request, Error error,
                           Message reply, const Fd& along) {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    reply.type = request.type;
    reply.is_reply = true;
    reply.request_id = request.request_id;
    reply.status = error.code;
    const int descriptor = along.get();
    const auto packet = proto::encode(reply).value();
    [[maybe_unused]] const auto sent = found->second.send(
        packet, std::span(&descriptor, along ? 1 : 0), deadline_from_now(std::chrono::seconds(5)));
}

void FakeDataService::hold_fetches(bool hold) {
    const std::lock_guard lock(mutex_);
    holds_ = hold;
    if (hold) return;
    for (const Held& held : held_) send(held.connection, held.request, fetch(held.request), {}, {});
    held_.clear();
}

void FakeDataService::refuse_next(DataType type, Errc code, std::string text) {
    const std::lock_guard lock(mutex_);
    refusals_[type] = {code, std::move(text)};
}

void FakeDataService::unseal_next_listing() {
    const std::lock_guard lock(mutex_);
    unseals_ = true;
}

int FakeDataService::count(DataType type) const {
    const std::lock_guard lock(mutex_);
    const auto found = counts_.find(type);
    return found == counts_.end() ? 0 : found->second;
}

int FakeDataService::connections() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(connections_.size());
}

bool FakeDataService::wait_for_connections(int count) const {
    std::unique_lock lock(mutex_);
    return arrived_.wait_for(lock, std::chrono::seconds(30),
                             [&] { return static_cast<int>(connections_.size()) == count; });
}

bool FakeDataService::wait_for(DataType type, int wanted) const {
    std::unique_lock lock(mutex_);
    return arrived_.wait_for(lock, std::chrono::seconds(30), [&] {
        const auto found = counts_.find(type);
        return found != counts_.end() && found->second >= wanted;
    });
}

proto::DataPlanRequest FakeDataService::last_plan() const {
    const std::lock_guard lock(mutex_);
    return last_plan_;
}

std::string FakeDataService::written(const std::string& path) const {
    const std::lock_guard lock(mutex_);
    const auto found = written_.find(path);
    return found == written_.end() ? "" : found->second;
}

}  // namespace test_support
