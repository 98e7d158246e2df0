// PageActuator: carries directives to the sessions of a job, by their directive pages.

#pragma once

#include "fabricd/control/loop/controller.hpp"
#include "fabricd/telemetry/session_pages.hpp"

namespace fabricd {

/// What the page of each rank shall say. kUnsupported for more ranks than a page holds.
fabricshm::Result<fabricshm::DirectiveImage> image_of(const Directive& directive);

class PageActuator : public Actuators {
  public:
    /// `pages` outlives the actuator.
    explicit PageActuator(SessionPages& pages) : pages_(pages) {}

    /// Fails as rank 0's page does: it is the one that a job reads. Others that never asked for
    /// directives get them from it.
    fabricshm::Result<void> direct(const Directive& directive) override;

  private:
    SessionPages& pages_;
};

}  // namespace fabricd
