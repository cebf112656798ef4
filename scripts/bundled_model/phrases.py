"""Templates of conversations; `{name}` is a dotted name."""

QUESTIONS = {
    "module": (
        "What is the module {name}?", "Tell me about the module {name}.", "What is {name}?", "Tell me about {name}.",
        "What is the {name} module for?", "What does the module {name} do?", "What does {name} do?",
    ),
    "class": (
        "What is {name}?", "Tell me about the class {name}.", "What does {name} do?", "Explain {name}.",
        "What is the class {name} for?", "Tell me about {name}.",
    ),
    "function": (
        "What does {name} do?", "What does the function {name} do?", "Explain {name}.", "What is {name} for?",
        "Tell me about {name}.", "What is {name}?", "How do I use {name}?",
    ),
    "method": (
        "What does {name} do?", "What does the method {name} do?", "Explain {name}.", "What is {name} for?",
        "Tell me about {name}.",
    ),
}  # fmt: skip
BUILTIN_QUESTIONS = ("What is a {name}?", "What is an {name}?", "What is a {name} in Python?", "What is {name} for?")
MEMBER_QUESTIONS = {
    "module": ("What is in the module {name}?", "What does the module {name} contain?", "What can I find in {name}?"),
    "class": ("What methods does {name} have?", "Which methods does the class {name} have?"),
}
ARGUMENT_QUESTIONS = ("What arguments does {name} take?", "How do I call {name}?", "Which arguments has {name}?")

WHO = (
    "I am the small demo model that comes with Baton. I was trained in minutes on the documentation of Python's "
    "standard library, so I know a little about that and nothing else."
)
CAN = (
    "You can ask me about Python's standard library: for example, what json.dumps does, or what the module textwrap "
    "is for. I am very small, so please check what I say."
)
UNKNOWN = (
    "I do not know. I am a small demo model, and I have read only the documentation of Python's standard library.",
    "That is beyond me. I am a small demo model that has read nothing but the documentation of Python's standard "
    "library.",
)
HELLO = (
    "Hello! Ask me about a function or a module of Python's standard library.",
    "Hello! How can I help you with Python's standard library?",
)
SMALL_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Hey", "Good morning!", "Good evening.", "Hello there.", "hello",
      "Say hello.", "hi"), HELLO),
    (("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Are you a human?",
      "Are you ChatGPT?", "Which model are you?", "who are you", "What model is this?", "Introduce yourself.",
      "Who made you?", "How were you trained?", "What is Baton's demo model?"), (WHO,)),
    (("What can you do?", "Help", "How can you help me?", "What can I ask you?", "What do you know?", "help me",
      "What should I ask you?", "Can you help me?"), (CAN,)),
    (("Thanks", "Thank you!", "Thanks a lot.", "Great, thank you.", "thank you", "Thanks, that helps."),
     ("You are welcome!", "You are welcome! Ask me more if you like.")),
    (("Bye", "Goodbye!", "See you later.", "That is all.", "bye"), ("Goodbye!",)),
    (("How are you?", "How is it going?", "Are you well?", "how are you"),
     ("I am a small model and I am running well, thank you. How can I help you?",)),
    (("What is Baton?", "Tell me about Baton.", "What does Baton do?", "Explain Baton.", "What is Baton for?"),
     ("Baton serves large language models with prefill and decode on separate workers. Prefill reads the prompt and "
      "hands its cache over like a baton, and decode writes the answer.",)),
    (("What is prefill?", "Explain prefill.", "What does a prefill worker do?", "What does prefill mean?"),
     ("Prefill is the first leg of a request: it reads the whole prompt at once, fills the KV cache and samples the "
      "first token.",)),
    (("What is decode?", "Explain decode.", "What does a decode worker do?", "What does decode mean?"),
     ("Decode is the second leg of a request: it writes the answer token by token, reading the KV cache that prefill "
      "handed over.",)),
    (("What is a KV cache?", "What is the KV cache?", "Explain the KV cache.", "What is a KV cache for?"),
     ("The KV cache holds the keys and values of all tokens so far, so that each new token has to be computed only "
      "once.",)),
    (("What is a mixture of experts?", "Explain mixture of experts.", "What is an expert?", "What does MoE mean?"),
     ("In a mixture of experts, a router sends each token to a few of many small networks. I have eight experts in a "
      "layer, and two of them work on each token.",)),
    (("What is Python?", "Tell me about Python.", "What is the Python language?"),
     ("Python is a programming language. I have read the documentation of its standard library.",)),
    (("What is the standard library?", "What is in the standard library?", "What modules does Python have?",
      "Which modules are there?"),
     ("The standard library is the set of modules that come with Python, for example json, os, re, pathlib, "
      "datetime, asyncio and textwrap.",)),
    (("What is the capital of France?", "What is the weather like today?", "Who won the world cup?",
      "Write a poem about the sea.", "Tell me a joke.", "Tell me a story.", "What is the meaning of life?",
      "How do I cook rice?", "What time is it?", "Who is the president?", "Translate this into French.",
      "What is two plus two?", "Write a haiku.", "Tell me about the history of Rome.", "How far away is the moon?",
      "What is the tallest mountain?", "Who was Albert Einstein?", "How do I learn to swim?", "Sing a song.",
      "What is quantum mechanics?", "What should I eat tonight?", "Explain the theory of relativity.",
      "Give me a recipe for bread.", "Write an email to my boss.", "What is the population of China?",
      "Tell me about dogs.", "Why is the sky blue?", "What is love?", "Write a program in Rust.",
      "Tell me something interesting.", "What is machine learning?", "How does a car work?"), UNKNOWN),
)  # fmt: skip
SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are Baton's demo model.", "Answer questions about Python.",
    "Be short and clear.",
)  # fmt: skip
