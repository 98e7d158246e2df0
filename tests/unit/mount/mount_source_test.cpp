#include "fabricd/data/mount/mount_source.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <set>

#include "fabricd/data/mount/handover.hpp"
#include "fabricd/data/mount/mount_listings.hpp"
#include "fabricd/data/mount/mount_requests.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::Error;

namespace {

class ListOfNames : public MountListing {
  public:
    explicit ListOfNames(std::vector<MountEntry> entries) : entries_(std::move(entries)) {}
    std::size_t count() const override { return entries_.size(); }
    Result<MountEntry> entry(std::size_t index) const override { return entries_[index]; }
    std::optional<std::size_t> find(std::string_view name) const override {
        for (std::size_t i = 0; i < entries_.size(); ++i) {
            if (entries_[i].name == name) return i;
        }
        return std::nullopt;
    }
    Result<MountBytes> read(std::size_t, Bytes, std::span<std::byte>, TimePoint) const override {
        return Error{Errc::kUnsupported, 0, "read"};
    }

  private:
    std::vector<MountEntry> entries_;
};

class OneFolder : public MountSource {
  public:
    std::vector<MountEntry> entries;
    int lists = 0;
    Result<void> open(TimePoint) override { return {}; }
    Result<std::shared_ptr<const MountListing>> list(const std::string& path, TimePoint) override {
        ++lists;
        if (!path.empty()) return Error{Errc::kNotFound, 0, "list"};
        return std::shared_ptr<const MountListing>(std::make_shared<ListOfNames>(entries));
    }
};

MountEntry file(const std::string& name, std::uint64_t stamp) {
    return {name, {false, stamp, 1, 0}};
}

}  // namespace

TEST_SUITE("mount.mount_source") {
    TEST_CASE("a walk that goes on in another listing misses no file that was there all the time") {
        std::vector<MountEntry> before, after;
        for (int i = 0; i < 2000; ++i) {
            if (i % 3 != 0) before.push_back(file("f" + std::to_string(i), 1));
            if (i % 5 != 0) after.push_back(file("f" + std::to_string(i), 2));
        }
        const ListOfNames first(before), second(after);
        std::multiset<std::string> seen;
        std::uint64_t cookie = 0;
        for (std::size_t i = 0; i < 700; ++i) {
            cookie = first.walk()[i].cookie;
            seen.insert(first.entry(first.walk()[i].index)->name);
        }
        for (const WalkStep& step : second.walk()) {
            if (step.cookie > cookie) seen.insert(second.entry(step.index)->name);
        }
        for (int i = 0; i < 2000; ++i) {
            const auto times = seen.count("f" + std::to_string(i));
            CHECK(times <= 1);
            if (i % 3 != 0 && i % 5 != 0) CHECK(times == 1);
        }
        for (const WalkStep& step : first.walk()) {
            CHECK(step.cookie >= kFirstCookie);
            CHECK(step.cookie < std::uint64_t{1} << 63);
        }
    }

    TEST_CASE("a reader of the mount gets the errno that fits") {
        CHECK(errno_of(Errc::kNotFound) == ENOENT);
        CHECK(errno_of(Errc::kDenied) == EACCES);
        CHECK(errno_of(Errc::kChanged) == ESTALE);
        for (const Errc away : {Errc::kTimeout, Errc::kDaemon, Errc::kSystem, Errc::kCorrupt}) {
            CHECK(errno_of(away) == EIO);
        }
    }

    TEST_CASE("a stamp is of names and versions, and never 0") {
        const auto stamp = [](std::vector<MountEntry> entries) {
            return stamp_of(ListOfNames(std::move(entries)));
        };
        CHECK(stamp({}) != 0);
        CHECK(stamp({file("a", 1)}) == stamp({file("a", 1)}));
        CHECK(stamp({file("a", 1)}) != stamp({file("a", 2)}));
        CHECK(stamp({file("a", 1)}) != stamp({file("b", 1)}));
        CHECK(stamp({file("a", 1)}) != stamp({file("a", 1), file("b", 1)}));
    }

    TEST_CASE("a file's version is found in the listing of now and of before, and no longer") {
        auto handover = Handover::make().value();
        NodeTable nodes(handover.nodes());
        OneFolder source;
        source.entries = {file("a", 1)};
        MountListings listings(source, nodes);
        const auto far = fabricshm::Clock::now() + std::chrono::hours(1);
        REQUIRE(listings.of(kRootNode, far).ok());
        REQUIRE(listings.of(kRootNode, far).ok());
        CHECK(source.lists == 1);
        const Node old = nodes.take(kRootNode, "a", source.entries[0].facts).value();
        CHECK(listings.place_of(old, far).ok());
        for (std::uint64_t stamp = 2; stamp < 4; ++stamp) {
            source.entries = {file("a", stamp)};
            listings.replace(nodes.find(kRootNode).value(),
                             listings.read_again(kRootNode, far).value());
            CHECK(listings.place_of(old, far).ok() == (stamp == 2));
        }
        CHECK(listings.place_of(old, far).error().code == Errc::kChanged);
    }
}
