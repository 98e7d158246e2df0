#include "fabricd/data/silo/prep_listing.hpp"

#include <utility>

namespace fabricd {

namespace {

constexpr std::size_t kNamesAtATime = 1000;

}  // namespace

Result<void> PrepListing::go_to(const std::string& folder, const std::string& after,
                                TimePoint deadline) {
    if (is_begun_ && !after.empty() && folder == folder_ && after == given_) return {};
    folder_ = folder;
    begin_ = given_ = after;
    last_of_source_.clear();
    held_.clear();
    entries_.clear();
    left_out_ = 0;
    first_left_out_.clear();
    wrong_ = 0;
    first_wrong_.clear();
    is_read_ = false;
    // A folder that is not there is an error of this call, also for no entries.
    is_begun_ = false;
    if (auto read = read_page(deadline); !read.ok()) return read;
    is_begun_ = true;
    return {};
}

Result<void> PrepListing::fill(std::size_t wanted, TimePoint deadline) {
    while (entries_.size() < wanted && !is_read_) {
        // Pages may have nothing but what is left out.
        auto read = fabricshm::Clock::now() < deadline
                        ? read_page(deadline)
                        : Result<void>(Error{fabricshm::Errc::kTimeout, 0, "list prepared"});
        if (read.ok()) continue;
        is_begun_ = false;
        return read;
    }
    return {};
}

// A name to come is not before the source's last one, and with its end not before itself: what is
// held before that name has its place. At the end of the folder all have.
void PrepListing::release_before(const std::string* name) {
    while (!held_.empty() && (name == nullptr || held_.begin()->first < *name)) {
        auto first = held_.extract(held_.begin());
        if (first.key() > begin_) entries_.push_back(std::move(first.mapped()));
    }
}

void PrepListing::add(SiloEntry entry) {
    if (!entry.is_folder) entry.name += kPreparedEnd;
    const std::string path = joined_path(folder_, entry.name);
    const std::string name = entry.name;
    const bool fits = is_silo_path(joined_path(below_, path));
    if (fits && held_.try_emplace(name, std::move(entry)).second) return;
    if (left_out_++ == 0) {
        first_left_out_ = printable(path) +
                          (fits ? ": there are two of that name" : ": longer than a path may be");
    }
}

Result<void> PrepListing::read_page(TimePoint deadline) {
    FABRIC_TRY(SiloPage page, source_.list(joined_path(below_, folder_), last_of_source_,
                                           kNamesAtATime, deadline));
    if (left_out_ == 0) first_left_out_ = page.first_left_out;
    left_out_ += page.left_out;
    if (wrong_ == 0) first_wrong_ = page.first_wrong;
    wrong_ += page.wrong;
    for (SiloEntry& entry : page.entries) {
        release_before(&entry.name);
        last_of_source_ = entry.name;
        add(std::move(entry));
    }
    is_read_ = page.is_last;
    if (is_read_) release_before(nullptr);
    return {};
}

void PrepListing::take(bool given) {
    if (given) given_ = entries_.front().name;
    entries_.pop_front();
}

void PrepListing::report(SiloPage& page) {
    page.left_out += std::exchange(left_out_, 0);
    if (page.first_left_out.empty()) page.first_left_out = std::exchange(first_left_out_, {});
    first_left_out_.clear();
    page.wrong += std::exchange(wrong_, 0);
    if (page.first_wrong.empty()) page.first_wrong = std::exchange(first_wrong_, {});
    first_wrong_.clear();
}

}  // namespace fabricd
