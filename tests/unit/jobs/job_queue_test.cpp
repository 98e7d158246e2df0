#include "fabricd/jobs/job_queue.hpp"

#include <doctest/doctest.h>

using namespace fabricd;
using Kind = QueueStep::Kind;

namespace {

QueuedJob queued(unsigned number, int priority = 0, std::vector<std::string> after = {}) {
    QueuedJob job;
    job.number = number;
    job.name = "j" + std::to_string(number);
    job.priority = priority;
    job.after = std::move(after);
    return job;
}

QueuedJob ended(unsigned number, JobOutcome outcome) {
    QueuedJob job = queued(number);
    job.state = JobPhase::kEnded;
    job.outcome = outcome;
    return job;
}

QueuedJob running(unsigned number) {
    QueuedJob job = queued(number);
    job.state = JobPhase::kRunning;
    job.is_managed = true;
    return job;
}

std::vector<unsigned> started(const std::vector<QueueStep>& steps) {
    std::vector<unsigned> numbers;
    for (const QueueStep& step : steps) {
        if (step.kind == Kind::kStart) numbers.push_back(step.number);
    }
    return numbers;
}

const QueueStep& step_of(const std::vector<QueueStep>& steps, unsigned number) {
    for (const QueueStep& step : steps) {
        if (step.number == number) return step;
    }
    FAIL("there is no step for the job");
    return steps.front();
}

}  // namespace

TEST_SUITE("jobs.job_queue") {
    TEST_CASE("the larger priority goes first, of equal ones the lower number") {
        const std::vector<QueuedJob> jobs = {queued(1), queued(2, 5), queued(3, 5), queued(4, -1)};
        CHECK(started(next_steps(jobs, 1)) == std::vector<unsigned>{2});
        CHECK(started(next_steps(jobs, 3)) == std::vector<unsigned>{2, 3, 1});
        CHECK(started(next_steps({running(1), queued(2)}, 1)).empty());
        const auto full = next_steps({running(1), queued(2)}, 1);
        CHECK(step_of(full, 2).kind == Kind::kWait);
        CHECK(step_of(full, 2).reason == "1 at once run already (serve --at-once)");
    }

    TEST_CASE(
        "a job waits for those that it is after, and ends when one of them did not end well") {
        auto steps = next_steps({running(1), queued(2, 0, {"j1"})}, 9);
        CHECK(step_of(steps, 2).reason == "after job 1 (j1), which is running");
        steps = next_steps({ended(1, JobOutcome::kOk), queued(2, 0, {"j1", "1"})}, 9);
        CHECK(started(steps) == std::vector<unsigned>{2});
        steps = next_steps({ended(1, JobOutcome::kFailed), queued(2, 0, {"1"})}, 9);
        CHECK(step_of(steps, 2).kind == Kind::kFail);
        CHECK(step_of(steps, 2).reason == "after: job 1 (j1) failed");
        steps = next_steps({queued(2, 0, {"7"})}, 9);
        CHECK(step_of(steps, 2).reason == "after: there is no job 7");
    }

    TEST_CASE("a job of Slurm takes no place, is no orphan, and is waited for as any") {
        QueuedJob slurms = running(1);
        slurms.is_managed = false;
        slurms.is_slurms = true;
        const auto steps = next_steps({slurms, queued(2), queued(3, 0, {"1"})}, 1);
        CHECK(steps.size() == 2);
        CHECK(started(steps) == std::vector<unsigned>{2});
        CHECK(step_of(steps, 3).reason == "after job 1 (j1), which is running");
    }

    TEST_CASE("a name means the last job of that name before") {
        QueuedJob old = ended(1, JobOutcome::kFailed);
        QueuedJob next = ended(2, JobOutcome::kOk);
        QueuedJob later = queued(4);
        old.name = next.name = later.name = "etl";
        const auto steps = next_steps({old, next, queued(3, 0, {"etl"}), later}, 9);
        CHECK(started(steps) == std::vector<unsigned>{3, 4});
        // Not itself, and no circle: only jobs before it count.
        CHECK(step_of(next_steps({queued(1, 0, {"j1"})}, 9), 1).kind == Kind::kFail);
    }

    TEST_CASE("what lost its manager is an orphan, whatever state it was in") {
        for (const JobPhase state : {JobPhase::kAdmitted, JobPhase::kRunning, JobPhase::kEnding}) {
            QueuedJob job = queued(1);
            job.state = state;
            CHECK(step_of(next_steps({job}, 1), 1).kind == Kind::kOrphan);
        }
        CHECK(next_steps({ended(1, JobOutcome::kOk)}, 1).empty());
    }

    TEST_CASE("the first that does not fit keeps those behind it waiting, not those before it") {
        QueuedJob big = queued(2, 1);
        big.is_deferred = true;
        const auto steps = next_steps({queued(1), big, queued(3, 2)}, 9);
        CHECK(started(steps) == std::vector<unsigned>{3});
        CHECK(step_of(steps, 1).reason == "behind job 2 (j2), which does not fit now");
        CHECK(steps.size() == 2);
    }
}
