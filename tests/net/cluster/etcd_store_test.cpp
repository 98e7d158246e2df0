// The cluster store against a real etcd: what it promises its callers while members die, stop and
// lose their data.

#include "fabricd/net/etcd_store.hpp"

#include <doctest/doctest.h>

#include <csignal>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "fabricd/net/host_lease.hpp"
#include "libfabricshm/base/reason.hpp"
#include "tests/support/etcd_process.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Errc;
using test_support::EtcdProcesses;

namespace {

const HostRecord kRecord{0, 11, 12, 13, "emu, 1 GiB", "127.0.0.1:1"};

std::unique_ptr<EtcdStore> store_of(const EtcdProcesses& etcd) {
    EtcdOptions options;
    options.endpoints = etcd.endpoints();
    options.total = 5s;  // the machine may be busy
    return EtcdStore::make(options, "test").value();
}

/// All news until one satisfies `wanted`; nothing when none does in half a minute.
std::optional<StoreNews> await_news(ClusterStore& store,
                                    const std::function<bool(const StoreNews&)>& wanted,
                                    const std::function<void()>& meanwhile = {}) {
    const BootTime end = BootClock::now() + 30s;
    while (BootClock::now() < end) {
        const auto news = store.news(100ms);
        if (meanwhile) meanwhile();
        if (news.ok() && wanted(*news)) return *news;
    }
    return std::nullopt;
}

auto has_host(const std::string& name) {
    return [name](const StoreNews& news) {
        for (const auto& [host, record] : news.hosts) {
            if (host == name) return true;
        }
        return false;
    };
}

auto has_deletion(const std::string& name, Incarnation incarnation) {
    return [name, incarnation](const StoreNews& news) {
        for (const auto& [host, number] : news.deleted) {
            if (host == name && number == incarnation) return true;
        }
        return false;
    };
}

/// Renews until it works again; false when it does not in half a minute.
bool keeps_again(ClusterStore& store) {
    const BootTime end = BootClock::now() + 30s;
    while (BootClock::now() < end) {
        if (store.keep().ok()) return true;
    }
    return false;
}

void check_settling(EtcdStore& one, EtcdStore& two) {
    // Of a group that is cut in two one side goes on; later ones are parts of it.
    const auto of = [](std::uint8_t group, std::uint64_t ranks) {
        Survivors survivors;
        survivors.group[0] = group;
        survivors.ranks[3] = ranks;
        return survivors;
    };
    CHECK(one.settle(of(1, 0b1011)).value());
    CHECK(two.settle(of(1, 0b1011)).value());
    CHECK_FALSE(two.settle(of(1, 0b0100)).value());
    CHECK_FALSE(two.settle(of(1, 0b1111)).value());
    CHECK(two.settle(of(1, 0b1001)).value());
    CHECK_FALSE(one.settle(of(1, 0b1011)).value());
    CHECK_FALSE(one.settle(of(1, 0b0010)).value());
    CHECK(one.settle(of(2, 0b0100)).value());
    CHECK_FALSE(one.read_all()->data_lost);
}

}  // namespace

TEST_SUITE("net.cluster.etcd_store") {
    TEST_CASE("one member: places, news, fences, leases that end, data that is lost") {
        if (!test_support::has_etcd()) return;
        EtcdProcesses etcd;
        const auto one = store_of(etcd);
        const auto two = store_of(etcd);

        // Of two that want one name, one gets it.
        const auto first = one->join("a", kRecord, 5s);
        REQUIRE(first.ok());
        CHECK(first->times.ttl >= 5s);
        HostRecord rival = kRecord;
        rival.instance = 99;
        CHECK(two->join("a", rival, 5s).error().code == Errc::kBusy);
        // The daemon that has it may ask again: an answer may have been lost.
        CHECK(one->join("a", kRecord, 5s)->incarnation == first->incarnation);
        const auto second = two->join("b", kRecord, 5s);
        REQUIRE(second.ok());
        CHECK(second->incarnation > first->incarnation);

        // Both hear of both, with the incarnations that they were given.
        const auto all = one->news(100ms);
        REQUIRE(all.ok());
        CHECK(all->is_whole);
        CHECK_FALSE(all->data_lost);
        REQUIRE(all->hosts.size() == 2);
        CHECK(all->hosts[0].second.incarnation == first->incarnation);
        CHECK(all->hosts[1].second.incarnation == second->incarnation);
        CHECK(all->hosts[0].second.pool == kRecord.pool);

        // One that leaves is heard of at once; its next place is another incarnation.
        REQUIRE(two->leave().ok());
        CHECK(await_news(*one, has_deletion("b", second->incarnation)));
        const auto third = two->join("b", kRecord, 5s);
        REQUIRE(third.ok());
        CHECK(third->incarnation > second->incarnation);
        CHECK(await_news(*one, has_host("b")));

        // A daemon that comes in time goes on with the place; one that asks for another lease does
        // not.
        const auto successor = store_of(etcd);
        HostRecord again = kRecord;
        again.incarnation = third->incarnation;
        CHECK(successor->resume("b", again, third->lease)->incarnation == third->incarnation);
        // That record is its own, and no other daemon's.
        CHECK(successor->join("b", kRecord, 5s)->lease == third->lease);
        CHECK(successor->resume("b", again, first->lease).error().code == Errc::kNotFound);
        CHECK(successor->resume("b", again, 4711).error().code == Errc::kNotFound);

        check_settling(*one, *two);
        // Fenced stays fenced, whatever is written later; claims are one daemon's.
        const FenceKey key{"c", 5};
        REQUIRE(one->write_fence(key, {false, "a", "lease", 1, 2}).ok());
        REQUIRE(one->write_fence(key, {true, "a", "operator", 1, 2}).ok());
        REQUIRE(two->write_fence(key, {false, "b", "lease", 1, 2}).ok());
        const auto fences = two->read_all();
        REQUIRE(fences.ok());
        REQUIRE(fences->fences.size() == 1);
        CHECK(fences->fences[0].first == key);
        CHECK(fences->fences[0].second == FenceRecord{true, "a", "operator", 1, 2});
        CHECK(one->claim(key).value());
        CHECK(one->claim(key).value());
        CHECK_FALSE(two->claim(key).value());

        // A lease that is not renewed ends; the others hear it, and its claims are free.
        const auto brief = store_of(etcd);
        const auto short_place = brief->join("d", kRecord, 2s);
        REQUIRE(short_place.ok());
        CHECK(await_news(*one, has_deletion("d", short_place->incarnation), [&] {
            CHECK(one->keep().ok());
            (void)two->keep();
        }));
        CHECK(brief->keep().error().code == Errc::kNotFound);

        // etcd away: calls end, with an error. Data lost: known as that, and the record is written
        // as it was.
        etcd.kill(0);
        CHECK(one->keep().error().code == Errc::kTimeout);
        etcd.start(0, true);
        etcd.await(0);
        CHECK(one->keep().error().code == Errc::kNotFound);
        const auto wiped = one->read_all();
        REQUIRE(wiped.ok());
        CHECK(wiped->data_lost);
        HostRecord same = kRecord;
        same.incarnation = first->incarnation;
        const auto restored = one->join("a", same, 5s);
        REQUIRE(restored.ok());
        CHECK(restored->incarnation == first->incarnation);
        CHECK_FALSE(one->read_all()->data_lost);
        // etcd counts from 1 again; incarnations do not.
        const auto newcomer = store_of(etcd);
        const auto later = newcomer->join("e", kRecord, 5s);
        REQUIRE(later.ok());
        CHECK(later->incarnation > third->incarnation);
        const auto heard = newcomer->read_all();
        REQUIRE(heard.ok());
        CHECK_FALSE(heard->data_lost);
        REQUIRE(heard->hosts.size() == 2);
        CHECK(heard->hosts[0].second.incarnation == first->incarnation);
    }

    TEST_CASE("restored from an older snapshot it gives out no number that a daemon has known") {
        if (!test_support::has_etcd()) return;
        EtcdProcesses etcd;
        const auto one = store_of(etcd);
        const auto place = one->join("a", kRecord, 60s);
        REQUIRE(place.ok());
        REQUIRE(one->read_all().ok());
        etcd.kill(0);
        etcd.save(0);
        etcd.start(0);
        etcd.await(0);
        // What happens after the snapshot: lives of b, and the end of one of them.
        Incarnation newest = 0;
        const auto two = store_of(etcd);
        for (int life = 0; life < 20; ++life) {
            const auto joined = two->join("b", kRecord, 60s);
            REQUIRE(joined.ok());
            CHECK(joined->incarnation > newest);
            newest = joined->incarnation;
            REQUIRE(two->leave().ok());
        }
        // Of one whose clock is ahead, far above the time of day.
        newest += Incarnation{1} << 40;
        REQUIRE(one->write_fence({"b", newest}, {true, "a", "operator", 1, 2}).ok());
        REQUIRE(one->read_all().ok());
        etcd.kill(0);
        etcd.restore(0);
        etcd.start(0);
        etcd.await(0);

        // One that knows finds it out; its own record and lease were in the snapshot.
        const auto news = one->read_all();
        REQUIRE(news.ok());
        CHECK(news->data_lost);
        HostRecord same = kRecord;
        same.incarnation = place->incarnation;
        const auto again = one->join("a", same, 60s);
        REQUIRE(again.ok());
        CHECK(again->incarnation == place->incarnation);
        CHECK(again->lease == place->lease);
        CHECK_FALSE(one->read_all()->data_lost);
        // One that knows nothing is above all of it.
        const auto stranger = store_of(etcd);
        const auto later = stranger->join("b", kRecord, 60s);
        REQUIRE(later.ok());
        CHECK(later->incarnation > newest);
        CHECK(await_news(*one, [&](const StoreNews& heard) {
            return !heard.hosts.empty() && heard.hosts[0].first == "b" &&
                   heard.hosts[0].second.incarnation == later->incarnation;
        }));
        CHECK_FALSE(one->read_all()->data_lost);
    }

    TEST_CASE(
        "a record without a lease, which no daemon wrote, is named to the host that it keeps out") {
        if (!test_support::has_etcd()) return;
        const EtcdProcesses etcd;
        EtcdOptions options;
        options.endpoints = etcd.endpoints();
        options.total = 5s;
        const auto client = EtcdClient::make(options).value();
        etcdserverpb::TxnRequest request;
        auto& put = *request.add_success()->mutable_request_put();
        put.set_key("/fabricd/test/v1/hosts/a");
        put.set_value("by hand");
        REQUIRE(client->transact(request).ok());
        const auto place = store_of(etcd)->join("a", kRecord, 5s);
        REQUIRE(place.error().code == Errc::kBusy);
        const std::string why = fabricshm::explanation_of(place.error());
        CAPTURE(why);
        CHECK(why.find("etcdctl del /fabricd/test/v1/hosts/a") != std::string::npos);
    }

    TEST_CASE(
        "with certificates on both sides a host joins, and with another authority's it does not") {
        if (!test_support::has_etcd()) return;
        const test_support::TemporaryDirectory ours, theirs;
        test_support::Certificates good, bad;
        REQUIRE(good.make(ours.path()));
        REQUIRE(bad.make(theirs.path()));
        const EtcdProcesses etcd(good);
        EtcdOptions options;
        options.endpoints = etcd.endpoints();
        options.tls_ca = good.ca;
        options.tls_cert = good.cert;
        options.tls_key = good.key;
        const auto store = EtcdStore::make(options, "test").value();
        auto place = store->join("a", kRecord, 5s);
        const BootTime end = BootClock::now() + 30s;
        while (!place.ok() && BootClock::now() < end) place = store->join("a", kRecord, 5s);
        const std::string why = place.ok() ? "" : fabricshm::explanation_of(place.error());
        CAPTURE(why);
        REQUIRE(place.ok());

        EtcdOptions unknown = options;
        unknown.tls_cert = bad.cert;
        unknown.tls_key = bad.key;
        CHECK_FALSE(EtcdStore::make(unknown, "test").value()->join("b", kRecord, 5s).ok());
        EtcdOptions deceived = options;  // would believe another etcd, and not this one
        deceived.tls_ca = bad.ca;
        CHECK_FALSE(EtcdStore::make(deceived, "test").value()->join("b", kRecord, 5s).ok());
        CHECK(store->keep().ok());
        CHECK(store->read_all()->hosts.size() == 1);
    }

    TEST_CASE("three members: the leader dies, another one stops, and leases and news go on") {
        if (!test_support::has_etcd()) return;
        EtcdProcesses etcd(3);
        const auto one = store_of(etcd);
        const auto two = store_of(etcd);
        const auto place = one->join("a", kRecord, 10s);
        REQUIRE(place.ok());
        REQUIRE(await_news(*one, has_host("a")));

        const int leader = etcd.leader();
        REQUIRE(leader >= 0);
        etcd.kill(leader);
        CHECK(keeps_again(*one));
        auto other = two->join("b", kRecord, 10s);
        for (int i = 0; i < 20 && !other.ok(); ++i) other = two->join("b", kRecord, 10s);
        REQUIRE(other.ok());
        CHECK(await_news(*one, has_host("b")));
        etcd.start(leader);
        etcd.await(leader);

        // Each in turn, so that the one that is asked is among them.
        Incarnation last = other->incarnation;
        for (int member = 0; member < 3; ++member) {
            etcd.signal(member, SIGSTOP);
            CHECK(keeps_again(*one));
            CHECK(keeps_again(*two));
            for (int i = 0; i < 20 && !two->leave().ok(); ++i) {
            }
            auto next = two->join("b", kRecord, 10s);
            for (int i = 0; i < 20 && !next.ok(); ++i) next = two->join("b", kRecord, 10s);
            REQUIRE(next.ok());
            CHECK(next->incarnation > last);
            last = next->incarnation;
            CHECK(await_news(
                *one,
                [&](const StoreNews& news) {
                    for (const auto& [host, record] : news.hosts) {
                        if (host == "b" && record.incarnation == last) return true;
                    }
                    return false;
                },
                [&] { (void)one->keep(); }));
            etcd.signal(member, SIGCONT);
            etcd.await(member);
        }
        CHECK(one->read_all()->data_lost == false);
        CHECK(keeps_again(*one));
    }
}
