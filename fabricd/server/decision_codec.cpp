#include "fabricd/server/decision_codec.hpp"

namespace fabricd {

namespace {

// Names of devices and reasons are the daemon's own, and ASCII: protobuf takes them as they are.
void pack(const Fact& fact, admin::v1::ControlFact& message) {
    message.set_stage(fact.stage);
    message.set_name(fact.name);
    message.set_value(fact.value);
    message.set_unit(fact.unit);
    message.set_rank(fact.rank);
}

// Kinds that this build does not know are shown as "unknown": also one that is no byte.
ActionFrame unpack_action(const admin::v1::ControlDecision& message) {
    ActionFrame frame;
    frame.kind = message.kind() < kActionKinds ? static_cast<ActionKind>(message.kind())
                                               : ActionKind::kUnknown;
    frame.rank = message.rank();
    frame.names = {message.names().begin(), message.names().end()};
    frame.before = {message.before().begin(), message.before().end()};
    frame.after = {message.after().begin(), message.after().end()};
    return frame;
}

}  // namespace

void pack(const Decision& decision, admin::v1::ControlDecision& message) {
    message.set_id(decision.id);
    message.set_window(decision.window);
    message.set_unix_ms(decision.unix_ms);
    const ActionFrame frame = frame_of(decision.action);
    message.set_kind(static_cast<std::uint32_t>(frame.kind));
    message.set_arena_id(decision.arena);
    message.set_group_id(decision.group);
    message.set_device(decision.device);
    for (const auto& name : frame.names) message.add_names(name);
    for (const double value : frame.before) message.add_before(value);
    for (const double value : frame.after) message.add_after(value);
    message.set_rank(frame.rank);
    message.set_objective(decision.objective);
    message.set_promised(decision.promised);
    message.set_gain(decision.gain);
    message.set_cost_s(decision.cost_s);
    message.set_serial(decision.serial);
    message.set_undoes(decision.undoes);
    message.set_reason(decision.reason);
    for (const Fact& fact : decision.facts) pack(fact, *message.add_facts());
    message.set_outcome(static_cast<std::uint32_t>(decision.outcome));
    message.set_measured(decision.measured);
    message.set_outcome_reason(decision.outcome_reason);
}

Decision unpack(const admin::v1::ControlDecision& message) {
    Decision decision;
    decision.id = message.id();
    decision.window = message.window();
    decision.unix_ms = message.unix_ms();
    decision.arena = message.arena_id();
    decision.group = message.group_id();
    decision.device = message.device();
    decision.action = action_of(unpack_action(message));
    decision.objective = message.objective();
    decision.promised = message.promised();
    decision.gain = message.gain();
    decision.cost_s = message.cost_s();
    decision.serial = message.serial();
    decision.undoes = message.undoes();
    decision.reason = message.reason();
    for (const auto& fact : message.facts()) {
        decision.facts.push_back(
            {fact.stage(), fact.name(), fact.value(), fact.unit(), fact.rank()});
    }
    decision.outcome = static_cast<Outcome>(message.outcome());
    decision.measured = message.measured();
    decision.outcome_reason = message.outcome_reason();
    return decision;
}

}  // namespace fabricd
