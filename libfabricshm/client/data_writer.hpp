// DataWriter: a file that is being written through the data service.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/data_client.hpp"

namespace fabricshm {

/// By one thread at a time, of the process that began it. Each has a connection of its own: the
/// service knows a write by its connection, and ends it with that.
class DataWriter {
  public:
    /// kExists, kDenied, the silo's errors.
    static Result<std::unique_ptr<DataWriter>> create(std::shared_ptr<DataClient> client,
                                                      const std::string& path, TimePoint deadline);

    /// Aborts what was not committed.
    ~DataWriter();
    DataWriter(const DataWriter&) = delete;
    DataWriter& operator=(const DataWriter&) = delete;

    /// Appends. After an error nothing but the end can follow: how much of it arrived is not known.
    /// The name is free again by then.
    Result<void> write(std::span<const std::byte> bytes, TimePoint deadline);
    /// The silo has the file when this returns; nothing follows, whatever it returns.
    Result<void> commit(TimePoint deadline);

    const std::string& path() const noexcept { return path_; }
    DataClient& client() const noexcept { return *client_; }

  private:
    DataWriter(std::shared_ptr<DataClient> client, std::string path, std::uint64_t write,
               DataChannel::Connection connection)
        : client_(std::move(client)),
          path_(std::move(path)),
          write_(write),
          connection_(std::move(connection)) {}
    Result<void> may_go_on() const;
    Result<void> append(std::span<const std::byte> bytes, TimePoint deadline);

    const std::shared_ptr<DataClient> client_;
    const std::string path_;
    const std::uint32_t generation_ = fork_guard::generation();
    const std::uint64_t write_;
    DataChannel::Connection connection_;  // nullptr: the service has ended the write, or does soon
    bool is_over_ = false;
};

}  // namespace fabricshm
