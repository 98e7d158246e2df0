// A data service that runs in the test's own process and can be made to die, come back with other
// tables, evict, and keep silent: for tests of readers, without fabricd and without a silo.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/client/data_client.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/data_messages.hpp"
#include "libfabricshm/shm/data_layout.hpp"
#include "libfabricshm/shm/pin_page.hpp"
#include "tests/support/temporary_directory.hpp"

namespace test_support {

/// What byte `offset` of a version of a file is, in every fake service: written apart from the code
/// under test. Two versions, and two places of one file, differ nearly everywhere.
std::uint8_t data_byte(const std::string& path, std::uint64_t version, std::uint64_t offset);

/// How many of these bytes are not those of the file from `offset` on.
std::size_t wrong_bytes(const std::byte* bytes, std::size_t count, const std::string& path,
                        std::uint64_t version, std::uint64_t offset);

/// Files with made-up content in slots of one size. Its maker's side is as the contract says:
/// a line leaves, pages are searched, and a pinned one stays.
class FakeDataService {
  public:
    struct Options {
        std::size_t slots = 16;
        fabricshm::Bytes slot_bytes = 64 * fabricshm::kKiB;
        std::uint64_t lines = 256;
    };
    explicit FakeDataService(const Options& options);
    FakeDataService() : FakeDataService(Options{}) {}
    ~FakeDataService();
    FakeDataService(const FakeDataService&) = delete;
    FakeDataService& operator=(const FakeDataService&) = delete;

    /// "/set/a": a file of the folder "/set". At first of version 1.
    void add(const std::string& path, fabricshm::Bytes bytes);
    /// The next version of it, of other bytes.
    void change(const std::string& path);

    const std::string& socket() const noexcept { return socket_; }
    /// For DataClient::open(), of this process and its children.
    fabricshm::DataOptions options();

    /// Closes the socket and all connections, as SIGKILL would; the arena stays.
    void die();
    /// With the tables that were there.
    void come_back();
    /// With new tables in the same arena: the numbers of files begin again, in another order.
    void come_back_anew();
    /// With an arena of another generation; the one that was there is left as it is.
    void come_back_elsewhere();

    /// Makes room as for a file that is wanted. False: the line is pinned, or not ready.
    bool evict(std::uint64_t line);
    /// Evicts what it can.
    void evict_all();
    /// The line of a chunk, for tests that look at it.
    std::uint64_t line_of(const std::string& path, std::uint32_t chunk = 0) const;
    /// For tests that corrupt it.
    fabricshm::DataLine& line(std::uint64_t number);
    fabricshm::DataHeader& header();

    /// Answers fetches no more until it is asked to again.
    void hold_fetches(bool hold);
    /// Answers fetches at once, without bringing anything.
    void lie_about_fetches(bool lie) { lies_ = lie; }
    /// Answers the next request of this type with an error and a text.
    void refuse_next(fabricshm::proto::DataType type, fabricshm::Errc code, std::string text);
    /// Sends a listing that is not sealed in the next answer to kList.
    void unseal_next_listing();

    int count(fabricshm::proto::DataType type) const;
    int connections() const;
    /// Waits until there are as many; false after 30 s.
    bool wait_for_connections(int count) const;
    /// Waits for so many; false after 30 s.
    bool wait_for(fabricshm::proto::DataType type, int count) const;
    fabricshm::proto::DataPlanRequest last_plan() const;
    /// What was written and committed under a path.
    std::string written(const std::string& path) const;
    /// A reader's page, in the order in which they were made.
    fabricshm::PinPage& page(std::size_t number) const { return pages()[number]; }
    std::size_t readers() const;

  private:
    using Message = fabricshm::proto::DataMessage;
    using Type = fabricshm::proto::DataType;

    struct File {
        fabricshm::Bytes bytes = 0;
        std::uint64_t version = 1;
        std::uint64_t number = 0;  // of this version
        std::uint64_t first_line = 0;
    };
    struct Held {
        std::uint64_t connection;
        Message request;
    };
    struct Write {
        std::string path;
        std::string bytes;
    };
    static constexpr std::size_t kMaxPages = 64;

    void make_arena();
    void make_tables();
    void place(File& file);
    void start();
    void run();
    void read_from(std::uint64_t connection);
    void handle(std::uint64_t connection, const Message& request, fabricshm::Fd descriptor);
    fabricshm::Error act(const Message& request, const fabricshm::Fd& descriptor, Message& reply,
                         fabricshm::Fd& along);
    fabricshm::Error list(const Message& request, Message& reply, fabricshm::Fd& along);
    fabricshm::Error fetch(const Message& request);
    fabricshm::Error write(const Message& request, const fabricshm::Fd& descriptor, Message& reply);
    std::uint64_t free_slot();
    bool evict_locked(std::uint64_t line);
    bool is_pinned(std::uint64_t line);
    void fill(std::uint64_t line, std::uint64_t slot, const std::string& path, const File& file,
              std::uint32_t chunk);
    void send(std::uint64_t connection, const Message& request, fabricshm::Error error,
              Message reply, const fabricshm::Fd& along);
    fabricshm::PinPage* pages() const;

    const Options options_;
    TemporaryDirectory folder_;
    std::string socket_;
    fabricshm::Fd wake_;
    fabricshm::Mapping pages_;  // shared with children; begins with how many are in use

    mutable std::mutex mutex_;
    mutable std::condition_variable arrived_;
    std::shared_ptr<fabricshm::Fd> arena_file_;
    fabricshm::Mapping arena_;
    std::vector<fabricshm::Mapping> old_arenas_;
    fabricshm::DataTables tables_;
    std::vector<std::uint64_t> slots_;  // line + 1 of what is there; 0: free
    std::map<std::string, File> files_;
    std::uint64_t next_line_ = 0;
    std::uint64_t next_file_ = 1;
    std::uint64_t next_listing_ = 1;
    std::size_t hand_ = 0;

    std::thread thread_;
    fabricshm::UnixSocket listener_;
    std::map<std::uint64_t, fabricshm::UnixSocket> connections_;
    std::uint64_t last_connection_ = 0;
    std::vector<Held> held_;
    std::map<std::uint64_t, Write> writes_;
    std::map<std::string, std::string> written_;
    std::map<Type, int> counts_;
    std::map<Type, std::pair<fabricshm::Errc, std::string>> refusals_;
    fabricshm::proto::DataPlanRequest last_plan_{};
    bool holds_ = false;
    std::atomic<bool> lies_{false};
    bool unseals_ = false;
    bool stopping_ = false;
};

}  // namespace test_support
