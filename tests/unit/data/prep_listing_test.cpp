// Names of prepared files, against a sorted list of all of them.

#include "fabricd/data/silo/prep_listing.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;

namespace {

/// A folder "in" with these names, true for folders, in pages of its own size.
class Names : public Silo {
  public:
    std::map<std::string, bool> names;
    std::size_t page = 3;

    Result<SiloPage> list(const std::string& folder, const std::string& after, std::size_t most,
                          TimePoint) override {
        if (folder != "in") return Error{fabricshm::Errc::kNotFound, 0, "list"};
        SiloPage found;
        auto name = after.empty() ? names.begin() : names.upper_bound(after);
        for (; name != names.end() && found.entries.size() < std::min(most, page); ++name) {
            found.entries.push_back({name->first, name->second, {}});
        }
        found.is_last = name == names.end();
        return found;
    }
    Result<FileFacts> look(const std::string&, TimePoint) override { return FileFacts{}; }
    bool has_room() const noexcept override { return false; }
    void start(const Fetch&) override {}
    std::vector<Fetched> wait(TimePoint) override { return {}; }
};

std::vector<std::string> all_of(PrepListing& listing, std::size_t each, std::size_t* left_out) {
    std::vector<std::string> names;
    SiloPage page;
    for (bool more = true; more;) {
        REQUIRE(listing.go_to("", names.empty() ? "" : names.back(), Clock::now() + 10s).ok());
        REQUIRE(listing.fill(each, Clock::now() + 10s).ok());
        for (std::size_t i = 0; i < each && !listing.entries().empty(); ++i) {
            names.push_back(listing.entries().front().name);
            listing.take(true);
        }
        more = !(listing.entries().empty() && listing.is_whole());
    }
    listing.report(page);
    *left_out = page.left_out;
    return names;
}

}  // namespace

TEST_SUITE("data.prep_listing") {
    TEST_CASE("names with their end are in the order of their bytes, whatever the pages") {
        std::mt19937 random(1);
        for (int turn = 0; turn < 400; ++turn) {
            Names source;
            source.page = 1 + random() % 5;
            // Few letters, before and behind the point, so that many names begin alike.
            for (auto count = random() % 30; count > 0; --count) {
                std::string name;
                for (auto letters = 1 + random() % 4; letters > 0; --letters) {
                    name += "-./nz"[random() % 5 == 2 ? 0 : random() % 5];
                }
                std::replace(name.begin(), name.end(), '/', '.');
                if (name != "." && name != "..") source.names.emplace(name, random() % 4 == 0);
            }
            std::vector<std::string> wanted;
            for (const auto& [name, is_folder] : source.names) {
                wanted.push_back(is_folder ? name : name + ".npy");
            }
            std::sort(wanted.begin(), wanted.end());
            PrepListing listing(source, "in");
            std::size_t left_out = 0;
            CHECK(all_of(listing, 1 + random() % 7, &left_out) == wanted);
            CHECK(left_out == 0);
        }
    }

    TEST_CASE("a listing goes on from any name") {
        Names source;
        for (const char* name : {"a", "a-b", "a.n", "a.z", "b"}) source.names[name] = false;
        PrepListing listing(source, "in");
        REQUIRE(listing.go_to("", "a.n", Clock::now() + 10s).ok());
        REQUIRE(listing.fill(1000, Clock::now() + 10s).ok());
        std::vector<std::string> names;
        for (const SiloEntry& entry : listing.entries()) names.push_back(entry.name);
        CHECK(names == std::vector<std::string>{"a.n.npy", "a.npy", "a.z.npy", "b.npy"});
    }

    TEST_CASE("a name that two have, or that is too long, is left out and counted") {
        Names source;
        source.names = {{"a", false}, {"a.npy", true}, {std::string(253, 'l'), false}};
        PrepListing listing(source, "in");
        std::size_t left_out = 0;
        CHECK(all_of(listing, 10, &left_out) == std::vector<std::string>{"a.npy"});
        CHECK(left_out == 2);
    }

    TEST_CASE("a folder that is not there is an error") {
        Names source;
        PrepListing listing(source, "out");
        CHECK(listing.go_to("", "", Clock::now() + 10s).error().code == fabricshm::Errc::kNotFound);
    }
}
