#include "emu/sim/event_queue.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

using emu::EventQueue;

TEST_SUITE("sim.event_queue") {
    TEST_CASE("events come out by time, and those of one time in the order of scheduling") {
        EventQueue queue;
        queue.schedule(2.0, 0, 1);
        queue.schedule(1.0, 0, 2);
        queue.schedule(2.0, 0, 3);
        CHECK(queue.pop().who == 2);
        CHECK(queue.pop().who == 1);
        CHECK(queue.pop().who == 3);
        CHECK(queue.empty());
        CHECK(queue.popped() == 3);
    }

    TEST_CASE("time never goes back, whatever is scheduled while events run") {
        EventQueue queue;
        std::mt19937_64 random(7);
        for (int i = 0; i < 100; ++i) queue.schedule(static_cast<double>(random() % 50), 0, i);
        double last = 0;
        for (int popped = 0; !queue.empty(); ++popped) {
            const auto event = queue.pop();
            CHECK(event.at >= last);
            CHECK(queue.now() == event.at);
            last = event.at;
            if (popped < 1000) queue.schedule(last + static_cast<double>(random() % 10), 1, popped);
        }
    }

    TEST_CASE("an empty queue is due never") {
        EventQueue queue;
        CHECK(std::isinf(queue.next_at()));
        queue.move_to(5);
        CHECK(queue.now() == 5);
    }
}
