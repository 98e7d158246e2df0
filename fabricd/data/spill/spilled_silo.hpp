// SpilledSilo: a silo with the host's disk before it: chunks of the spill are read there, and names
// that the silo does not say now are those that it said last.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fabricd/data/catalogue/catalogue_thread.hpp"
#include "fabricd/data/silo/silo.hpp"
#include "fabricd/data/spill/spill.hpp"
#include "fabricd/data/spill/spill_reader.hpp"

namespace fabricd {

/// As any silo. A fetch of a whole chunk that the spill has does not ask the silo behind, which may
/// be away: then its names come from the catalogue, with one warning, and it is opened again when
/// something is asked of it that is not here.
class SpilledSilo : public Silo {
  public:
    struct Parts {
        std::string at;  // where the silo appears in the namespace
        std::function<Result<std::unique_ptr<Silo>>()> open;
        Spill* spill = nullptr;  // none: names alone
        CatalogueThread* catalogue = nullptr;
        std::span<std::byte> memory;  // into which is fetched
    };

    /// Fails as the silo behind, when nothing is known of it from before either.
    static Result<std::unique_ptr<SpilledSilo>> open(Parts parts);

    Result<SiloPage> list(const std::string& folder, const std::string& after, std::size_t most,
                          TimePoint deadline) override;
    Result<FileFacts> look(const std::string& path, TimePoint deadline) override;
    std::optional<SiloAway> away() const override { return away_; }
    bool has_room() const noexcept override;
    void start(const Fetch& fetch) override;
    std::vector<Fetched> wait(TimePoint deadline) override;

  private:
    explicit SpilledSilo(Parts parts);

    std::string place_of(const std::string& path) const;
    Result<Silo*> behind();
    Result<SiloPage> list_behind(const std::string& folder, const std::string& after,
                                 std::size_t most, TimePoint deadline);
    bool answers(TimePoint deadline);
    void note_page(const std::string& folder, const std::string& after, const SiloPage& page);
    void note_gone(const std::string& folder);
    void note_away(const Error& error, const std::string& reason);
    bool start_here(const Fetch& fetch);
    void start_behind(const Fetch& fetch);
    void take_ended(TimePoint deadline, std::vector<Fetched>& ended);

    const Parts parts_;
    std::unique_ptr<Silo> behind_;  // empty: it could not be opened yet
    std::optional<SiloAway> away_;
    // By folder and what the page comes after: a sum of what the catalogue was given.
    std::map<std::pair<std::string, std::string>, std::size_t> noted_;
    std::unique_ptr<SpillReader> reader_;       // empty: no spill
    std::map<std::uint64_t, Fetch> from_here_;  // by tag
    std::size_t from_behind_ = 0;               // under way there
    std::vector<Fetch> missed_;                 // that turned out not to be here
    std::vector<Fetched> ended_;
};

}  // namespace fabricd
