"""Several processes that train one model: who they are, what they tell each other, what each of them holds."""
