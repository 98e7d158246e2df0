// A reader of the data cache made of the layout headers alone, apart from the library's own.

#pragma once

#include <memory>
#include <string>

#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/client/published_arena.hpp"
#include "libfabricshm/client/session.hpp"
#include "tests/support/data_service_bench.hpp"

namespace test_support {

/// One thread. Everything is tried again until a deadline, over restarts of the service.
class DataReader {
  public:
    DataReader(std::string daemon, std::string socket) : socket_(std::move(socket)) {
        fabricshm::SessionOptions options;
        options.sockets = {std::move(daemon)};
        options.label = "reader";
        session_ = fabricshm::Session::open(options).value();
        reach();
    }
    ~DataReader() {
        arena_.reset();
        if (session_) session_->close();
    }

    /// What a path's listing has now; empty with `problem` where the service says no.
    DataClient::Listed list(const std::string& path) {
        const auto deadline = fabricshm::Clock::now() + std::chrono::seconds(60);
        DataClient::Listed listed;
        do {
            listed = client_->list(path, true, tables_.lines);
            if (listed.status == fabricshm::Errc::kInternal) reach();
        } while (listed.status == fabricshm::Errc::kInternal && fabricshm::Clock::now() < deadline);
        return listed;
    }

    enum class Read { kRight, kChanged, kFailed };
    /// All bytes of a file's version, each chunk read under its pin.
    Read read(const fabricshm::DataEntry& entry, std::string& content) {
        content.clear();
        for (std::uint64_t chunk = 0; chunk < fabricshm::data_chunks(entry.bytes); ++chunk) {
            const Read read = read_chunk(entry, chunk, content);
            if (read != Read::kRight) return read;
        }
        return Read::kRight;
    }

    /// What the service said when it failed.
    std::string problem;
    std::uint64_t fetches = 0;

  private:
    // A client of the service that there is now, and its arena.
    void reach() {
        const auto deadline = fabricshm::Clock::now() + std::chrono::seconds(60);
        while (fabricshm::Clock::now() < deadline) {
            if (!fabricshm::UnixSocket::connect(socket_, deadline).ok()) {
                ::usleep(2000);
                continue;
            }
            client_ = std::make_unique<DataClient>(socket_);
            const auto answer = client_->ask(fabricshm::proto::DataType::kHello, "");
            const auto hello =
                fabricshm::proto::data_fixed<fabricshm::proto::DataHelloReply>(answer.payload);
            if (answer.status != fabricshm::Errc::kOk || !hello) continue;
            if (arena_ && tables_.generation == hello->generation) return;
            auto arena = fabricshm::SubscribedArena::subscribe(session_, hello->arena, deadline);
            if (!arena.ok()) {
                problem = describe(arena.error());
                continue;
            }
            arena_ = std::move(arena).value();
            const auto tables = fabricshm::read_data_header(arena_->data(), arena_->bytes());
            if (!tables.ok()) continue;
            tables_ = *tables;
            return;
        }
    }

    Read read_chunk(const fabricshm::DataEntry& entry, std::uint64_t chunk, std::string& content) {
        const auto deadline = fabricshm::Clock::now() + std::chrono::seconds(60);
        const std::uint64_t number = entry.first_line + chunk;
        while (fabricshm::Clock::now() < deadline) {
            const auto& line = fabricshm::data_line(arena_->data(), tables_, number);
            const std::uint64_t word = line.word.load(std::memory_order_acquire);
            const auto state = fabricshm::data_state(word);
            if (state == fabricshm::DataLineState::kGone) return Read::kChanged;
            if (state == fabricshm::DataLineState::kReady &&
                fabricshm::pin(arena_->pins(), 0, number, line.word, word)) {
                const auto extent = fabricshm::read_data_line(line, tables_);
                const bool is_its = extent && extent->file == entry.file && extent->chunk == chunk;
                std::uint32_t checksum = 0;
                if (is_its) {
                    const auto* bytes =
                        reinterpret_cast<const char*>(arena_->data() + extent->offset);
                    content.append(bytes, extent->bytes);
                    checksum = fabricshm::crc32c(bytes, extent->bytes);
                }
                fabricshm::unpin(arena_->pins(), 0);
                if (!is_its) return Read::kChanged;
                if (checksum == extent->checksum) return Read::kRight;
                problem = "a checksum is wrong";
                return Read::kFailed;
            }
            ++fetches;
            const auto answer = client_->fetch(entry, chunk);
            if (answer.status == fabricshm::Errc::kChanged) return Read::kChanged;
            if (answer.status == fabricshm::Errc::kInternal) {
                const std::uint64_t before = tables_.generation;
                reach();
                if (tables_.generation != before) return Read::kChanged;
            } else if (answer.status != fabricshm::Errc::kOk) {
                problem = answer.payload;
                return Read::kFailed;
            }
        }
        problem = "no end in time";
        return Read::kFailed;
    }

    std::string socket_;
    std::shared_ptr<fabricshm::Session> session_;
    std::shared_ptr<fabricshm::SubscribedArena> arena_;
    std::unique_ptr<DataClient> client_;
    fabricshm::DataTables tables_;
};

}  // namespace test_support
