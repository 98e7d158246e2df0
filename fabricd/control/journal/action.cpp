#include "fabricd/control/journal/action.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

template <typename Value>
Value value_of(double number) noexcept {
    if constexpr (std::is_floating_point_v<Value>)
        return number;
    else
        return whole_of<Value>(number);
}

template <typename Value>
std::vector<double> numbers_of(const std::vector<Value>& values) {
    return {values.begin(), values.end()};
}

template <typename Value>
void take(std::vector<Value>& values, const std::vector<double>& numbers) {
    values.reserve(numbers.size());
    for (const double number : numbers) values.push_back(value_of<Value>(number));
}

void write(const UnknownAction& action, ActionFrame& frame) {
    frame = action.frame;
}

template <typename A>
void write(const A& action, ActionFrame& frame) {
    if constexpr (ActionOfRank<A>) frame.rank = action.rank;
    if constexpr (RankedAction<A>) {
        frame.before = numbers_of(action.before);
        frame.after = numbers_of(action.after);
    }
    if constexpr (SingleAction<A>) {
        frame.before = {static_cast<double>(action.before)};
        frame.after = {static_cast<double>(action.after)};
    }
    if constexpr (NamedAction<A>) {
        for (const auto& change : action.changes) {
            frame.names.push_back(change.name);
            frame.before.push_back(static_cast<double>(change.before));
            frame.after.push_back(static_cast<double>(change.after));
        }
    }
}

void read(UnknownAction& action, const ActionFrame& frame) {
    action.frame = frame;
}

// Only as far as the lists reach: one that does not fit gives another frame than it came from.
template <typename A>
void read(A& action, const ActionFrame& frame) {
    if constexpr (ActionOfRank<A>) action.rank = frame.rank;
    if constexpr (RankedAction<A>) {
        take(action.before, frame.before);
        take(action.after, frame.after);
    }
    if constexpr (SingleAction<A>) {
        if (frame.before.size() != 1 || frame.after.size() != 1) return;
        action.before = value_of<decltype(action.before)>(frame.before.front());
        action.after = value_of<decltype(action.after)>(frame.after.front());
    }
    if constexpr (NamedAction<A>) {
        const auto count = std::min({frame.names.size(), frame.before.size(), frame.after.size()});
        for (std::size_t i = 0; i < count; ++i) {
            using Value = decltype(action.changes[i].before);
            action.changes.push_back({frame.names[i], value_of<Value>(frame.before[i]),
                                      value_of<Value>(frame.after[i])});
        }
    }
}

template <std::size_t I = 0>
Action empty_action(std::size_t kind) {
    FABRIC_CHECK(kind < kActionKinds);  // a number from outside is looked at in action_of()
    if constexpr (I + 1 < kActionKinds) {
        if (kind != I) return empty_action<I + 1>(kind);
    }
    return Action(std::in_place_index<I>);
}

}  // namespace

ActionFrame frame_of(const Action& action) {
    ActionFrame frame;
    frame.kind = kind_of(action);
    std::visit([&](const auto& known) { write(known, frame); }, action);
    return frame;
}

Action action_of(ActionFrame frame) {
    const auto kind = static_cast<std::size_t>(frame.kind);
    if (kind != 0 && kind < kActionKinds) {
        Action action = empty_action(kind);
        std::visit([&](auto& known) { read(known, frame); }, action);
        if (frame_of(action) == frame) return action;
    }
    return UnknownAction{std::move(frame)};
}

Action reversed(Action action) {
    std::visit(
        [](auto& known) {
            using A = std::decay_t<decltype(known)>;
            if constexpr (RankedAction<A> || SingleAction<A>) std::swap(known.before, known.after);
            if constexpr (NamedAction<A>) {
                for (auto& change : known.changes) std::swap(change.before, change.after);
            }
        },
        action);
    return action;
}

void drop_unchanged(Action& action) {
    std::visit(
        [](auto& known) {
            if constexpr (NamedAction<std::decay_t<decltype(known)>>) {
                std::erase_if(known.changes,
                              [](const auto& change) { return change.before == change.after; });
            }
        },
        action);
}

void drop_change(Action& action, std::size_t at) {
    std::visit(
        [&](auto& known) {
            if constexpr (NamedAction<std::decay_t<decltype(known)>>) {
                FABRIC_CHECK(at < known.changes.size());
                known.changes.erase(known.changes.begin() + static_cast<std::ptrdiff_t>(at));
            }
        },
        action);
}

}  // namespace fabricd
