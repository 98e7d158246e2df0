#include "fabricd/jobs/job_queue.hpp"

#include <algorithm>
#include <optional>

namespace fabricd {

namespace {

using Kind = QueueStep::Kind;

std::string label(const QueuedJob& job) {
    return "job " + std::to_string(job.number) + " (" + job.name + ")";
}

const QueuedJob* find_named(const std::vector<QueuedJob>& jobs, const std::string& word,
                            unsigned before) {
    const bool is_number = word.find_first_not_of("0123456789") == std::string::npos;
    const QueuedJob* found = nullptr;
    for (const QueuedJob& job : jobs) {
        if (job.number >= before) break;
        if (is_number ? std::to_string(job.number) == word : job.name == word) found = &job;
    }
    return found;
}

/// What keeps a job from its turn: nothing when all that it waits for has ended well.
std::optional<QueueStep> blocked(const std::vector<QueuedJob>& jobs, const QueuedJob& job) {
    for (const std::string& word : job.after) {
        const QueuedJob* other = find_named(jobs, word, job.number);
        if (other == nullptr) {
            return QueueStep{Kind::kFail, job.number, "after: there is no job " + word};
        }
        if (other->state == JobPhase::kEnded && other->outcome != JobOutcome::kOk) {
            return QueueStep{Kind::kFail, job.number,
                             "after: " + label(*other) + " " + name_of(other->outcome)};
        }
        if (other->state != JobPhase::kEnded) {
            return QueueStep{Kind::kWait, job.number,
                             "after " + label(*other) + ", which is " + name_of(other->state)};
        }
    }
    return {};
}

}  // namespace

std::vector<QueueStep> next_steps(const std::vector<QueuedJob>& jobs, unsigned at_once) {
    std::vector<QueueStep> steps;
    std::vector<const QueuedJob*> ready;
    unsigned managed = 0;
    for (const QueuedJob& job : jobs) {
        if (job.state == JobPhase::kEnded || job.is_slurms) continue;
        if (job.is_managed) {
            ++managed;
        } else if (job.state != JobPhase::kQueued) {
            ++managed;  // it goes on
            steps.push_back({Kind::kOrphan, job.number, "its task manager was killed"});
        } else if (auto step = blocked(jobs, job)) {
            steps.push_back(std::move(*step));
        } else {
            ready.push_back(&job);
        }
    }
    std::stable_sort(ready.begin(), ready.end(),
                     [](const auto* a, const auto* b) { return a->priority > b->priority; });
    const QueuedJob* stuck = nullptr;
    for (const QueuedJob* job : ready) {
        if (job->is_deferred && stuck == nullptr) {
            stuck = job;  // its reason is the plan's
        } else if (stuck != nullptr) {
            steps.push_back(
                {Kind::kWait, job->number, "behind " + label(*stuck) + ", which does not fit now"});
        } else if (managed < at_once) {
            ++managed;
            steps.push_back({Kind::kStart, job->number, ""});
        } else {
            steps.push_back({Kind::kWait, job->number,
                             std::to_string(at_once) + " at once run already (serve --at-once)"});
        }
    }
    return steps;
}

}  // namespace fabricd
