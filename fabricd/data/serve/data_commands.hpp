// The commands of `fabric-data`, on the service's side: JSON in, JSON out.

#pragma once

#include <functional>
#include <string>

#include "fabricd/data/serve/service_parts.hpp"
#include "fabricd/data/serve/walks.hpp"

namespace fabricd {

/// The control thread's.
class DataCommands {
  public:
    DataCommands(ServiceParts& parts, Walks& walks) : parts_(parts), walks_(walks) {}

    using Reply = std::function<void(const RequestOutcome&, const std::string& json)>;

    /// {"command": "status" | "why" | "load" | "flush" | "drop" | "verify" | "refresh" | "walk",
    /// "path": ..., "silo": bool, "walk": id}. `reply` is called once, perhaps later.
    void run(const std::string& json, Reply reply, TimePoint now);

    std::string status(TimePoint now) const;

  private:
    void why(const std::string& path, const Reply& reply, TimePoint now);
    void drop(const std::string& path, const Reply& reply);
    void lose(std::uint64_t id);
    void refresh(const std::string& path, const Reply& reply, TimePoint now);
    void walk(const std::string& path, bool is_load, bool with_silo, const Reply& reply,
              TimePoint now);
    void show_walk(std::uint64_t id, const Reply& reply) const;

    ServiceParts& parts_;
    Walks& walks_;
};

}  // namespace fabricd
