#include "fabricd/service/signals.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <future>

using namespace fabricd;
using namespace std::chrono_literals;

TEST_SUITE("fabricd.signals") {
    TEST_CASE("signals that come before start() are delivered after it, each to its action") {
        auto thread = SignalThread::block();
        REQUIRE(thread.ok());
        ::kill(::getpid(), SIGHUP);
        std::promise<void> reloaded;
        std::promise<int> ended;
        SignalThread::Sender sender;
        thread->start({[&](int number, SignalThread::Sender by) {
                           sender = by;
                           ended.set_value(number);
                       },
                       [&] { reloaded.set_value(); }});
        REQUIRE(reloaded.get_future().wait_for(20s) == std::future_status::ready);
        ::kill(::getpid(), SIGTERM);
        auto number = ended.get_future();
        REQUIRE(number.wait_for(20s) == std::future_status::ready);
        CHECK(number.get() == SIGTERM);
        CHECK(sender.pid == ::getpid());
        CHECK(sender.uid == ::getuid());
    }
}
