// Writes: the way of new files from jobs into the cache and into silos. docs/data.md.
//
// The bytes come in memory files and are copied. Each 4 MiB of a file become a line of the cache
// that has no name, and go to the silo from there. The commit hands these lines over to the file
// that the silo then has (write = "through"), or to one that it is going to have ("back").

#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fabricd/data/serve/service_parts.hpp"
#include "fabricd/data/serve/write_log.hpp"
#include "fabricd/data/serve/write_worker.hpp"
#include "fabricd/data/serve/written_bytes.hpp"
#include "fabricd/server/event_loop.hpp"

namespace fabricd {

/// The control thread's.
class Writes : public WriteDesk {
  public:
    struct Options {
        std::string log;  // the file of WriteLog
        // Bytes on their way into silos: what is above them waits.
        Bytes on_the_way = 256 * fabricshm::kMiB;
        Duration retry_pause = std::chrono::seconds(10);  // of an upload that failed
    };

    /// Opens the writers of all silos that have them, and has them clear what an earlier service
    /// left. Errors as open_silo_writer(). The parts outlive it.
    static Result<std::unique_ptr<Writes>> start(Options options, ServiceParts& parts,
                                                 EventLoop& loop);
    ~Writes() override;

    void handle(DataRequest request, Reply reply) override;
    void end_connection(std::uint64_t connection) override;
    void tick(TimePoint now) override;
    Stats stats() const override;

  private:
    struct Write {
        std::uint64_t connection = 0;
        std::uint32_t silo = 0;
        WriteName name;
        WrittenFile content;
        std::size_t sent = 0;     // chunks, to the silo
        std::size_t written = 0;  // of these, that it has taken
        bool is_begun = false;
        bool is_back = false;    // the silo gets nothing before the commit
        bool is_logged = false;  // as what a crash may leave something of
        bool is_over = false;    // it is being aborted, or waits to be
        bool is_aborting = false;
        bool is_asked_commit = false;  // of the service
        bool is_committing = false;    // of the silo
        std::uint64_t file = 0;        // of "back", behind its commit
        TimePoint retry{};             // of an upload that failed
        bool is_cleared = false;       // nothing is left of that
        RequestOutcome failed;
        std::vector<Reply> waiting;  // of kCreate, kWrite or kCommit
    };
    enum class Kind { kBegin, kAppend, kCommit, kAbort };
    struct Step {
        std::uint64_t write = 0;
        Kind kind = Kind::kBegin;
    };

    Writes(Options options, ServiceParts& parts, EventLoop& loop);
    Result<void> open();

    void create(const DataRequest& request, const Reply& reply);
    void append(const DataRequest& request, const Reply& reply);
    void commit(const DataRequest& request, const Reply& reply);
    void abort(const DataRequest& request, const Reply& reply);
    Write* find(std::uint64_t id, std::uint64_t connection);
    RequestOutcome why_not(const std::string& path, std::uint32_t silo,
                           const std::string& inside) const;

    std::uint64_t add_step(std::uint64_t id, Kind kind);
    void begin(std::uint64_t id, Write& write);
    void cut_chunk(std::uint64_t id, Write& write);
    void send_chunks(std::uint64_t id, Write& write);
    void took(const Written& written);
    void took_append(std::uint64_t id, Write& write, const Written& written);
    void took_commit(std::uint64_t id, Write& write, const Written& written);
    void took_abort(std::uint64_t id, Write& write, const Written& written);
    void fail(std::uint64_t id, Write& write, const RequestOutcome& outcome);
    void give_up(std::uint64_t id, Write& write);
    void answer_waiting();
    void answer(Write& write, const RequestOutcome& outcome, const std::string& payload = "");
    void go_on(std::uint64_t id, Write& write);
    const KnownFile* publish(Write& write, const FileFacts& facts);
    void publish_back(std::uint64_t id, Write& write);
    void free_name(std::uint64_t id, const Write& write);
    void end(std::uint64_t id);

    Options options_;
    ServiceParts& parts_;
    EventLoop& loop_;
    WriteLog log_;
    std::vector<std::unique_ptr<WriteWorker>> workers_;  // by silo; null: it is read-only
    std::map<std::uint64_t, Write> writes_;
    std::map<std::uint64_t, Step> steps_;                                   // under way, by tag
    std::map<std::pair<std::uint32_t, std::string>, std::uint64_t> names_;  // and its write
    std::vector<Listings::Unwritten> unwritten_;                            // by silo
    std::uint64_t last_ = 0;
    WrittenBytes bytes_;
    Stats stats_;
};

}  // namespace fabricd
