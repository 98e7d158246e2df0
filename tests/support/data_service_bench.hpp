// A DataService on a thread, over an arena in this process's own memory, and a client of it.

#pragma once

#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

#include "fabricd/data/serve/data_service.hpp"
#include "fabricd/data/serve/writes.hpp"
#include "libfabricshm/os/sealed_file.hpp"
#include "libfabricshm/shm/data_layout.hpp"
#include "libfabricshm/shm/data_listing.hpp"
#include "tests/support/temporary_directory.hpp"

namespace test_support {

/// What a folder's file has to contain, from its name and its version.
inline std::string data_content(const std::string& name, int version, std::size_t bytes) {
    std::uint32_t state = 2166136261U + static_cast<std::uint32_t>(version) * 16777619U;
    for (const char letter : name) state = (state ^ static_cast<unsigned char>(letter)) * 16777619U;
    std::string text(bytes, '\0');
    for (char& letter : text) {
        state = state * 1664525U + 1013904223U;
        letter = static_cast<char>(state >> 24);
    }
    return text;
}

/// Written next to it and renamed, so that no reader sees half of it.
inline void put_file(const std::string& path, const std::string& content) {
    std::ofstream(path + ".part", std::ios::binary) << content;
    std::rename((path + ".part").c_str(), path.c_str());
}

/// Pins and notes of one reader in this process.
struct OwnMemory : fabricd::PublishedMemory {
    std::mutex mutex;
    std::multiset<std::uint64_t> pins;
    std::array<std::atomic<std::uint64_t>, 504> notes{};

    bool search(std::span<const std::uint64_t> lines, std::span<std::uint8_t> pinned) override {
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < lines.size(); ++i) pinned[i] = pins.count(lines[i]) != 0;
        return true;
    }
    void each(const std::function<void(std::uint64_t, Notes)>& visit) override { visit(1, notes); }
    std::vector<fabricd::PinHolder> holders(std::uint64_t line) override {
        const std::lock_guard lock(mutex);
        if (pins.count(line) == 0) return {};
        return {{1, pins.count(line)}};
    }
    /// As a reader that viewed the line.
    void view(std::uint64_t line) {
        const std::uint64_t position = notes[fabricshm::kDataNotePosition];
        notes[fabricshm::kDataNoteRing + position % fabricshm::kDataNoteRingWords] = line + 1;
        notes[fabricshm::kDataNotePosition] = position + 1;
    }
};

class DataServiceBench {
  public:
    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };

    /// `state`: a folder for what a service of before left; "": one of its own.
    explicit DataServiceBench(fabricd::DataSpec wanted, std::string state = "",
                              decltype(fabricd::DataService::Options::before) before = nullptr)
        : spec(std::move(wanted)), state_(std::move(state)), before_(std::move(before)) {
        arena.reset(static_cast<std::byte*>(std::aligned_alloc(4096, spec.memory)));
        std::fill_n(arena.get(), 4096, std::byte{0});
        tables = fabricshm::plan_data_tables(1, spec.files != 0 ? spec.files : 1000, spec.memory)
                     .value();
        std::fill_n(arena.get() + tables.lines_offset, tables.lines * sizeof(fabricshm::DataLine),
                    std::byte{0});
        start(true);
    }
    ~DataServiceBench() { stop(); }

    /// Begins; the tables of before are taken up unless `is_fresh`.
    void start(bool is_fresh) {
        loop = std::make_unique<fabricd::EventLoop>(fabricd::EventLoop::make().value());
        fabricd::DataService::Options options;
        options.spec = spec;
        options.socket = folder.file("data.sock");
        options.names = folder.file("names");
        options.arena_name = "data-test";
        options.arena = arena.get();
        options.tables = tables;
        options.is_fresh = is_fresh;
        options.before = before_;
        options.open = open_;
        auto started = fabricd::DataService::start(options, memory, *loop);
        if (!started.ok()) {
            problem = describe(started.error());
            return;
        }
        service = std::move(started).value();
        fabricd::Writes::Options written;
        written.log = state_.empty() ? folder.file("writes") : state_ + "/writes";
        written.retry_pause = std::chrono::milliseconds(20);
        if (on_the_way != 0) written.on_the_way = on_the_way;
        auto begun = fabricd::Writes::start(written, service->parts(), *loop);
        if (!begun.ok()) {
            problem = describe(begun.error());
            return;
        }
        writes = std::move(begun).value();
        service->set_writes(writes.get());
        thread = std::thread([this] {
            while (!loop->stopping()) {
                (void)loop->turn(fabricshm::Clock::now() + service->tick_interval());
                service->tick(fabricshm::Clock::now());
            }
        });
    }
    void stop() {
        if (!thread.joinable()) return;
        loop->stop();
        thread.join();
        loop->close();
        service->set_writes(nullptr);
        writes.reset();
        service.reset();
    }

    std::string socket() const { return folder.file("data.sock"); }

    fabricd::DataSpec spec;
    std::string state_;
    decltype(fabricd::DataService::Options::before) before_;
    decltype(fabricd::DataService::Options::open) open_;  // of the next start
    TemporaryDirectory folder;
    std::unique_ptr<std::byte, Free> arena;
    fabricshm::DataTables tables;
    OwnMemory memory;
    std::unique_ptr<fabricd::EventLoop> loop;
    std::unique_ptr<fabricd::DataService> service;
    std::unique_ptr<fabricd::Writes> writes;
    fabricshm::Bytes on_the_way = 0;  // of Writes; 0: its own
    std::thread thread;
    std::string problem;
};

/// One connection to a data service; each call waits for its answer.
class DataClient {
  public:
    explicit DataClient(const std::string& path)
        : socket_(fabricshm::UnixSocket::connect(path, soon()).value()) {}

    struct Answer {
        fabricshm::Errc status = fabricshm::Errc::kInternal;
        std::string payload;
        fabricshm::Fd descriptor;
    };
    Answer ask(fabricshm::proto::DataType type, const std::string& payload, int descriptor = -1) {
        fabricshm::proto::DataMessage request;
        request.type = type;
        request.request_id = ++last_;
        request.payload = payload;
        Answer answer;
        const auto packet = encode(request).value();
        const std::span<const int> with(&descriptor, descriptor >= 0 ? 1 : 0);
        if (!socket_.send(packet, with, soon()).ok()) return answer;
        return receive();
    }
    Answer receive() {
        Answer answer;
        std::array<std::byte, fabricshm::proto::kDataPacketMax> buffer;
        std::array<fabricshm::Fd, 1> descriptors;
        const auto got = socket_.receive(buffer, descriptors, soon());
        if (!got.ok()) {
            answer.payload = "no answer: " + describe(got.error());
            return answer;
        }
        const auto message =
            fabricshm::proto::decode_data_message(std::span(buffer).first(got->bytes));
        if (!message.ok()) return answer;
        answer.status = message->status;
        answer.payload = message->payload;
        answer.descriptor = std::move(descriptors[0]);
        return answer;
    }

    /// A listing as a copy: entries and names.
    struct Listed {
        fabricshm::Errc status = fabricshm::Errc::kInternal;
        std::string text;
        std::uint64_t id = 0;
        std::vector<std::pair<std::string, fabricshm::DataEntry>> entries;
        const fabricshm::DataEntry* find(const std::string& name) const {
            for (const auto& [one, entry] : entries) {
                if (one == name) return &entry;
            }
            return nullptr;
        }
    };
    Listed list(const std::string& path, bool is_recursive, std::uint64_t lines) {
        using namespace fabricshm::proto;
        const Answer answer =
            ask(DataType::kList,
                data_payload(DataListRequest{is_recursive ? kDataListRecursive : 0, 0}, path));
        Listed listed;
        listed.status = answer.status;
        listed.text = answer.payload;
        if (answer.status != fabricshm::Errc::kOk) return listed;
        const auto mapping = fabricshm::map_sealed_file(answer.descriptor, fabricshm::kGiB);
        if (!mapping.ok()) return listed;
        const auto view = fabricshm::ListingView::check({mapping->data(), mapping->size()}, lines);
        if (!view.ok()) {
            listed.status = view.error().code;
            return listed;
        }
        listed.id = view->id();
        for (std::uint64_t i = 0; i < view->size(); ++i) {
            listed.entries.emplace_back(std::string(view->name(i)), view->entry(i));
        }
        return listed;
    }
    Answer fetch(const fabricshm::DataEntry& entry, std::uint64_t chunk = 0) {
        using namespace fabricshm::proto;
        return ask(DataType::kFetch, data_payload(DataFetchRequest{
                                         entry.file, entry.first_line + chunk, kDataOnDemand, 0}));
    }
    Answer create(const std::string& path, std::uint64_t& write) {
        Answer answer = ask(fabricshm::proto::DataType::kCreate, path);
        const auto reply =
            fabricshm::proto::data_fixed<fabricshm::proto::DataCreateReply>(answer.payload);
        write = reply ? reply->write : 0;
        return answer;
    }
    /// `said`: what the request says that there is; all by default.
    Answer append(std::uint64_t write, const std::string& text, std::uint64_t said = ~0ULL) {
        const fabricshm::Fd file(::memfd_create("test", MFD_CLOEXEC));
        if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
            return {};
        }
        const std::uint64_t bytes = said == ~0ULL ? text.size() : said;
        return ask(fabricshm::proto::DataType::kWrite,
                   data_payload(fabricshm::proto::DataWriteRequest{write, bytes}), file.get());
    }
    Answer commit(std::uint64_t write) {
        return ask(fabricshm::proto::DataType::kCommit,
                   data_payload(fabricshm::proto::DataWriteEnd{write}));
    }
    Answer abort(std::uint64_t write) {
        return ask(fabricshm::proto::DataType::kAbort,
                   data_payload(fabricshm::proto::DataWriteEnd{write}));
    }
    /// All of a file, in pieces; the first error, or the answer to the commit.
    Answer write(const std::string& path, const std::string& text, std::size_t piece = 3 << 20) {
        std::uint64_t id = 0;
        Answer answer = create(path, id);
        for (std::size_t at = 0; answer.status == fabricshm::Errc::kOk && at < text.size();
             at += piece) {
            answer = append(id, text.substr(at, piece));
        }
        return answer.status == fabricshm::Errc::kOk ? commit(id) : std::move(answer);
    }
    /// JSON in, JSON out; "" and the text of the error in `error` when it is one.
    std::string command(const std::string& json, std::string* error = nullptr) {
        const Answer answer = ask(fabricshm::proto::DataType::kCommand, json);
        if (answer.status != fabricshm::Errc::kOk) {
            if (error != nullptr) *error = answer.payload;
            return "";
        }
        const auto mapping = fabricshm::map_sealed_file(answer.descriptor, fabricshm::kGiB);
        if (!mapping.ok()) return "";
        return {reinterpret_cast<const char*>(mapping->data()), mapping->size()};
    }

  private:
    static fabricshm::TimePoint soon() {
        return fabricshm::Clock::now() + std::chrono::seconds(60);
    }
    fabricshm::UnixSocket socket_;
    std::uint64_t last_ = 0;
};

}  // namespace test_support
