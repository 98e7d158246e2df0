// Listings: what paths hold, as the silos said it last, and the requests that wait for it.

#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/data/serve/listing_maker.hpp"

namespace fabricd {

/// What one path is.
struct PathFacts {
    bool is_folder = false;
    std::uint64_t file = 0;  // the id of a file
};

/// The control thread's. A failure of a silo is no listing: where there is one of before, it goes
/// on, else the failure is the answer.
class Listings {
  public:
    struct Parts {
        FileTable& files;
        Fills& fills;
        std::vector<std::unique_ptr<SiloWorker>>& silos;
        const std::vector<SiloSpec>& specs;
        std::uint64_t generation;  // of the tables
        Duration silo_timeout;
        std::function<bool(std::function<void()>)> post;  // to the control thread
    };
    /// Files that the cache has and the silo has not yet: by path, as they are to be listed.
    using Unwritten = std::map<std::string, FileFacts>;
    explicit Listings(Parts parts);

    using ListAnswer = std::function<void(const RequestOutcome&, std::shared_ptr<const Listing>)>;
    using StatAnswer = std::function<void(const RequestOutcome&, PathFacts)>;

    /// A path of the namespace: "/", "/images/train"; of a file its own listing of one entry.
    /// `is_new`: as the silo has it now; where it does not answer that is the answer, also if there
    /// is a listing of before.
    void list(const std::string& path, bool is_recursive, bool is_new, ListAnswer answer,
              TimePoint now);
    void stat(const std::string& path, bool is_new, StatAnswer answer, TimePoint now);

    /// A slice of making listings: call in each turn while there is one to make.
    void make_some() { maker_.tick(); }
    bool is_making() const noexcept { return !maker_.is_idle(); }
    /// Deadlines. Call some times in a second.
    void tick(TimePoint now);

    /// One of the last listings; nullptr: it is too old, or of another service.
    std::shared_ptr<const Listing> find(std::uint64_t id) const;
    /// Version and names of what lies there are asked for again.
    void expire(std::uint32_t silo);

    /// Where these are asked for; nothing: there are none.
    std::function<const Unwritten&(std::uint32_t silo)> unwritten;

    /// The silo that a path lies in, and the path there. Nothing: it lies in none.
    struct Place {
        std::uint32_t silo = 0;
        std::string path;
    };
    std::optional<Place> place_of(const std::string& path) const;

  private:
    struct Key {
        std::uint32_t silo;
        std::string path;
        bool is_recursive;
        auto operator<=>(const Key&) const = default;
    };
    template <typename Call>
    struct Waiter {
        Call answer;
        TimePoint deadline;
        bool is_new;  // it wants the silo's own word
    };
    struct Entry {
        std::shared_ptr<const Listing> last;
        bool is_expired = false;
        bool is_asked = false;  // the silo lists it now
        bool is_made = false;   // ... and has answered: what is left is this service's work
        bool is_late = false;   // it has expired since it was asked
        std::vector<Waiter<ListAnswer>> waiting;
    };
    struct Look {
        std::uint64_t before = 0;  // the id that the path had
        std::vector<Waiter<StatAnswer>> waiting;
    };
    using LookKey = std::pair<std::uint32_t, std::string>;

    Duration refresh_of(std::uint32_t silo) const;
    bool is_above_silos(const std::string& path) const;
    Result<std::shared_ptr<Listing>> list_above(const std::string& path, TimePoint now);
    void took(const Key& key, ListDone done);
    void add_unwritten(const Key& key, ListDone& done) const;
    void took_look(const LookKey& key, const ListDone& done);
    RequestOutcome late_outcome(std::uint32_t silo) const;
    void failed(const Key& key, const RequestOutcome& word);
    void finish(const Key& key, const RequestOutcome& word, const RequestOutcome& made,
                const std::shared_ptr<Listing>& listing);
    static void answer_all(const std::vector<Waiter<ListAnswer>>& waiting,
                           const RequestOutcome& word, const RequestOutcome& outcome,
                           const std::shared_ptr<const Listing>& listing);
    void remember(const std::shared_ptr<const Listing>& listing);

    Parts parts_;
    std::map<Key, Entry> entries_;
    std::map<LookKey, Look> looks_;                     // that silos do now
    std::list<std::shared_ptr<const Listing>> recent_;  // the newest last
    std::uint64_t last_id_;
    ListingMaker maker_;
};

/// How long names and versions of a silo count, where its spec says nothing.
Duration default_refresh(const SiloSpec& spec);

}  // namespace fabricd
