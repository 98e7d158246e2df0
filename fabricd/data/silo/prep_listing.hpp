// PrepListing: the names of a folder of prepared files, which end in ".npy", in their own order.

#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

inline constexpr std::string_view kPreparedEnd = ".npy";

/// Of one folder, page by page. The end changes the order of names: "a" comes before "a-b", and
/// "a-b.npy" before "a.npy".
class PrepListing {
  public:
    /// `below` is the folder of the source that the listing's root is.
    PrepListing(Silo& source, std::string below) : source_(source), below_(std::move(below)) {}

    /// entries() are those after `after` in `folder`. From elsewhere than the last name that
    /// take() gave out, the folder is read again from its start.
    Result<void> go_to(const std::string& folder, const std::string& after, TimePoint deadline);

    /// Reads on until `wanted` entries are there or the folder ends. Their facts are the source's.
    Result<void> fill(std::size_t wanted, TimePoint deadline);
    const std::deque<SiloEntry>& entries() const noexcept { return entries_; }
    bool is_whole() const noexcept { return is_read_ && held_.empty(); }

    /// Drops the first of entries(), which was given out or is none for the caller.
    void take(bool given);
    /// What the source could not give since the last call, into a page.
    void report(SiloPage& page);

  private:
    Result<void> read_page(TimePoint deadline);
    void release_before(const std::string* name);
    void add(SiloEntry entry);

    Silo& source_;
    const std::string below_;
    std::string folder_;
    bool is_begun_ = false;
    bool is_read_ = false;
    std::string last_of_source_;             // that was read
    std::string begin_;                      // entries come after it
    std::string given_;                      // the last that was given out
    std::map<std::string, SiloEntry> held_;  // by the new name: one before may still come
    std::deque<SiloEntry> entries_;
    std::size_t left_out_ = 0;
    std::string first_left_out_;
    std::size_t wrong_ = 0;
    std::string first_wrong_;
};

}  // namespace fabricd
