"""The recurrence h_t = A_bar h_(t-1) + v_t: its definition, and forms of it that are fast."""
