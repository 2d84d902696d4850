"""The 48 faults of the catalogue, each a change that a user could have made to an ordinary task."""

from health_cases.faults import behaviour, graph, numerics, optimizer, registration

FAULTS = {fault.id: fault for module in (graph, registration, optimizer, numerics, behaviour) for fault in module.FAULTS}
