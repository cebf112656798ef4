"""A chain of LangChain with a running server: langchain_chain.py [URL]. Needs langchain-openai."""

import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
model = ChatOpenAI(model="baton-bundled", base_url=f"{url}/v1", api_key="none", max_tokens=100)
prompt = ChatPromptTemplate.from_messages([("system", "Answer in one sentence."), ("user", "What does {name} do?")])
chain = prompt | model | StrOutputParser()
for text in chain.stream({"name": "json.dumps"}):
    print(text, end="", flush=True)
print()
for answer in chain.batch([{"name": "a file"}, {"name": "a list"}]):  # concurrent requests
    print(answer)
