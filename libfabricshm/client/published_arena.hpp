// PublishedArena: an arena that one process writes and others read. docs/pool.md.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/fork_guard.hpp"
#include "libfabricshm/client/session.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/shm/pin_page.hpp"

namespace fabricshm {

/// A reader as its arena's maker knows it.
struct ArenaReader {
    std::uint64_t number = 0;  // of its page; never used twice
    std::int32_t pid = 0;      // in the daemon's pid namespace
    std::uint32_t uid = 0;
    const PinPage* page = nullptr;  // input: see PinScan
};

/// Of a mapped arena of `session`: children of fork() don't get it when it is on a device. Else
/// nullptr.
std::unique_ptr<fork_guard::Hole> hole_of(const Session& session, const Mapping& mapping);

/// The maker's side. Thread-safe, but for what is said of readers().
class PublishedArena {
  public:
    /// Publishes an arena of `bytes` under `name` for `readers`, "uid" or "group:NAME" each, none:
    /// all that the daemon admits; root, the daemon's user and the maker's are readers always. One
    /// of that name and size that another process of this user published, and that readers kept, is
    /// taken up as it is, with what that one had stored until its end (`is_new` false); one whose
    /// maker was killed a moment ago is waited for. All of it is committed: some 0.3 s/GiB. kBusy:
    /// a live process publishes it, or it was withdrawn and readers still have it. kExists: an
    /// arena of that name is there, of another size or kind. kDenied: of another user.
    /// kUnsupported: this daemon publishes none.
    static Result<std::shared_ptr<PublishedArena>> publish(std::shared_ptr<Session> session,
                                                           const std::string& name, Bytes bytes,
                                                           const std::vector<std::string>& readers,
                                                           TimePoint deadline);

    /// The same for an arena that gives memory back when other arenas need it, and gets it again:
    /// elastic_words.hpp. Committed is as much as the pool has, `floor` of data() at least. Where
    /// a part of an arena can't go back to the pool it is an arena as any (is_elastic() false).
    static Result<std::shared_ptr<PublishedArena>> publish_elastic(
        std::shared_ptr<Session> session, const std::string& name, Bytes bytes, Bytes floor,
        const std::vector<std::string>& readers, TimePoint deadline);

    /// Unmaps. The arena stays published as long as the session or any reader has it.
    ~PublishedArena() = default;
    PublishedArena(const PublishedArena&) = delete;
    PublishedArena& operator=(const PublishedArena&) = delete;

    /// The application's bytes, the same for all.
    std::byte* data() const noexcept { return mapping_.data() + kPublishedHeaderBytes; }
    Bytes bytes() const noexcept { return mapping_.size() - kPublishedHeaderBytes; }
    bool is_new() const noexcept { return is_new_; }
    std::uint64_t id() const noexcept { return id_; }

    /// False: the daemon lost the session that published it, or this process was forked from the
    /// one that did. Its readers keep what they have; nothing of it may be replaced any more.
    bool is_held() const noexcept;

    /// True when readers() are all that can hold a pin now; a load each of two words. To be asked
    /// behind PinScan's making: what was changed before that is seen by every reader that comes
    /// later. False: sync_pages().
    bool knows_all() const noexcept;

    /// Learns from the daemon of pages that came and went. Ok: readers() were all that could hold a
    /// pin when the call began, and knows_all() is asked again. kBusy: a reader of before the
    /// daemon's restart has not presented its page yet: nothing may be replaced until it has.
    Result<void> sync_pages(TimePoint deadline);

    /// Those known; their pages stay mapped until the next sync_pages(). Of one thread at a time
    /// with sync_pages().
    const std::vector<ArenaReader>& readers() const noexcept { return readers_; }

    /// Scans all pages for lines that shall leave, after their words were stored: see PinScan. Ok:
    /// a line that `scan` has not pinned is no reader's. Else none of them may be replaced.
    /// Of one thread at a time.
    Result<void> scan_all(PinScan& scan, TimePoint deadline);

    // ---- Of an elastic arena; sizes are of data(), in whole pages. One thread at a time --------

    bool is_elastic() const noexcept { return is_elastic_; }
    /// What has pages: of another arena all of it.
    Bytes committed() const noexcept;
    /// What may be used when the maker begins: no more than a maker of before has kept.
    Bytes usable() const noexcept;
    /// What the daemon asks the maker to use at most; beyond what is used the new pages are there.
    /// Nothing: it has been answered to the end.
    std::optional<ElasticTarget> target() const noexcept;
    /// From now on no byte behind `bytes` is used: by no line, no reader's pin and no read that is
    /// under way. Those may be gone when this returns. More than the target: the rest follows, or
    /// not, by another call. Before bytes are used that were not, it has to be said, too.
    void keep(const ElasticTarget& target, Bytes bytes) noexcept;
    /// For the daemon's control loop and for people.
    void report(const ElasticUse& use) noexcept;

    /// Withdraws it: no reader subscribes any more, and its memory goes back when the last one is
    /// gone. Nothing may be stored in it afterwards.
    void unpublish() noexcept;

  private:
    static Result<std::shared_ptr<PublishedArena>> open(std::shared_ptr<Session> session,
                                                        const std::string& name, Bytes bytes,
                                                        const std::vector<std::string>& readers,
                                                        TimePoint deadline);
    Result<void> commit_elastic(Bytes floor, TimePoint deadline);
    PublishedArena(std::shared_ptr<Session> session, std::uint64_t session_id, std::uint64_t id,
                   Mapping mapping, bool is_new)
        : session_(std::move(session)),
          session_id_(session_id),
          id_(id),
          mapping_(std::move(mapping)),
          hole_(hole_of(*session_, mapping_)),
          is_new_(is_new) {}
    const PublishedHeader& header() const noexcept {
        return *reinterpret_cast<const PublishedHeader*>(mapping_.data());
    }
    ElasticWords& elastic() const noexcept {
        return reinterpret_cast<PublishedHeader*>(mapping_.data())->elastic;
    }
    Result<void> fetch_page(std::uint64_t number, TimePoint deadline);
    Result<std::vector<std::uint64_t>> list_pages(TimePoint deadline);

    const std::shared_ptr<Session> session_;
    const std::uint64_t session_id_;
    const std::uint64_t id_;
    const Mapping mapping_;
    const std::unique_ptr<fork_guard::Hole> hole_;  // of mapping_, where it is on a device
    const bool is_new_;
    bool is_elastic_ = false;
    std::uint32_t answered_ = 0;  // the serial of the last target that is answered to the end
    // Of the listing that readers_ are from; both 0: none yet.
    std::uint64_t newest_ = 0;
    std::uint64_t changes_ = 0;
    struct KnownPage {
        ArenaReader reader;
        Mapping mapping;
    };
    std::map<std::uint64_t, KnownPage> pages_;
    std::vector<ArenaReader> readers_;
};

/// The reader's side: the arena mapped for reading, and a page of pins of its own. Thread-safe.
class SubscribedArena {
  public:
    /// kNotFound: none of that name is published (any more). kDenied: not for this user. kNoMemory:
    /// too many pages of this session or user. Asked twice, a session gets the same page.
    static Result<std::shared_ptr<SubscribedArena>> subscribe(std::shared_ptr<Session> session,
                                                              const std::string& name,
                                                              TimePoint deadline);

    /// Unsubscribes, which lets all pins go: nothing of the arena may be in use any more. In a
    /// forked child it only unmaps: the page is the parent's, and the child subscribes by a session
    /// of its own.
    ~SubscribedArena();
    SubscribedArena(const SubscribedArena&) = delete;
    SubscribedArena& operator=(const SubscribedArena&) = delete;

    const std::byte* data() const noexcept { return mapping_.data() + kPublishedHeaderBytes; }
    Bytes bytes() const noexcept { return mapping_.size() - kPublishedHeaderBytes; }
    std::uint64_t id() const noexcept { return id_; }
    PinPage& pins() const noexcept { return *reinterpret_cast<PinPage*>(page_.data()); }

    /// False: the daemon lost the session that subscribed, or this process was forked from the one
    /// that did. What is pinned stays so while the process lives; a new subscription goes on.
    bool is_held() const noexcept;

  private:
    SubscribedArena(std::shared_ptr<Session> session, std::uint64_t session_id, std::uint64_t id,
                    Mapping mapping, Mapping page)
        : session_(std::move(session)),
          session_id_(session_id),
          id_(id),
          mapping_(std::move(mapping)),
          hole_(hole_of(*session_, mapping_)),
          page_(std::move(page)) {}

    const std::shared_ptr<Session> session_;
    const std::uint64_t session_id_;
    const std::uint64_t id_;
    Mapping mapping_;
    std::unique_ptr<fork_guard::Hole> hole_;  // of mapping_, where it is on a device
    Mapping page_;
};

}  // namespace fabricshm
